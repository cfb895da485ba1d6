package command

import (
	"bytes"
	_ "embed"
	"fmt"
	"io"
	"regexp"
	"strings"
	"text/template"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/config"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/cli"
)

//go:embed sluice.8
var manTemplate string

// Help is what "sluice NAME --help" prints.
type Help struct{ Name, Text string }

// Helps returns the help of each command, except hidden ones and cobra's own.
func Helps() ([]Help, error) {
	var all []Help
	for _, c := range cli.Root(others(), io.Discard, io.Discard).Commands() {
		if c.Hidden || c.Name() == "help" || c.Name() == "completion" {
			continue
		}
		var out bytes.Buffer
		if err := subcommand([]string{c.Name(), "--help"}, &out, &out); err != nil {
			return nil, fmt.Errorf("help of %s: %w", c.Name(), err)
		}
		all = append(all, Help{c.Name(), out.String()})
	}
	return all, nil
}

// man is the hidden command that writes the manual page, for packages and make install.
func man(_ []string, stdout io.Writer) error {
	commands, err := Helps()
	if err != nil {
		return err
	}
	usage, flags, _ := strings.Cut(config.Usage(), "\n\nServices:\n")
	about, usage, _ := strings.Cut(usage, "Usage:\n")
	page, err := template.New("sluice.8").Funcs(template.FuncMap{"roff": roff}).Parse(manTemplate)
	if err != nil {
		return fmt.Errorf("read template: %w", err)
	}
	err = page.Execute(stdout, map[string]any{"Usage": usage, "About": about, "Flags": "Services:\n" + flags,
		"Commands": commands})
	if err != nil {
		return fmt.Errorf("write manual page: %w", err)
	}
	return nil
}

// flagLine is the first line of a flag in a help: the flag, and what it does.
var flagLine = regexp.MustCompile(`^ {2,6}((?:-\w, )?--\S+(?: \S+)?)(?: {2,}(.*))?$`)

// escaped is text as roff has it, whose lines do not begin with a request.
func escaped(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "\u2014", `\(em`).Replace(text)
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		return `\&` + text
	}
	return text
}

// roff writes a help as the body of a section of a manual page.
func roff(help string) string {
	var out strings.Builder
	flag, filled := false, true // the line before is of a flag, and not one to be left as it is
	for _, line := range strings.Split(strings.Trim(help, "\n"), "\n") {
		m := flagLine.FindStringSubmatch(line)
		text := escaped(strings.TrimSpace(line))
		if fill := m != nil || flag || !strings.HasPrefix(line, "  "); fill != filled {
			filled = fill
			out.WriteString(map[bool]string{true: ".fi\n", false: ".nf\n"}[fill])
		}
		switch {
		case m != nil:
			fmt.Fprintf(&out, ".TP\n.B %s\n", escaped(m[1]))
			if m[2] != "" {
				out.WriteString(escaped(m[2]) + "\n")
			}
			flag = true
			continue
		case flag && strings.HasPrefix(line, "   "):
			out.WriteString(text + "\n")
			continue
		case text == "":
			out.WriteString(".PP\n")
		case strings.HasPrefix(line, "  "):
			out.WriteString(escaped(line) + "\n")
		case strings.HasSuffix(text, ":"):
			fmt.Fprintf(&out, ".B %s\n", text)
		default:
			out.WriteString(text + "\n")
		}
		flag = false
	}
	if !filled {
		out.WriteString(".fi\n")
	}
	return out.String()
}
