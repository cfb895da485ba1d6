package command

import (
	"bytes"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/bench/testbed"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/cli"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/config"
)

const manPage = "../../../../docs/sluice.8"

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

// TestManPage keeps the manual page true, and has groff, where it is, find nothing wrong with it.
func TestManPage(t *testing.T) {
	usage, flags, _ := strings.Cut(config.Usage(), "\n\nServices:\n")
	about, usage, _ := strings.Cut(usage, "Usage:\n")
	var page strings.Builder
	page.WriteString(".\\\" Written by SLUICE_UPDATE=1 go test ./cmd/sluice/internal/command -run TestManPage\n" +
		".TH SLUICE 8\n.SH NAME\nsluice \\- balance Kubernetes Services in user space\n.SH SYNOPSIS\n")
	page.WriteString(roff(usage) + ".SH DESCRIPTION\n" + roff(about))
	page.WriteString("The commands that look at the running process ask it at its unix socket, which only root and its\n" +
		"own user may connect to.\n.SH OPTIONS\n" + roff("Services:\n"+flags))
	page.WriteString(".SH COMMANDS\n")
	for _, c := range cli.Root(others, io.Discard, io.Discard).Commands() {
		if c.Hidden || c.Name() == "help" || c.Name() == "completion" {
			continue
		}
		var out bytes.Buffer
		if code := Main(Build{Version: "test"}, []string{c.Name(), "--help"}, &out, &out); code != 0 {
			t.Errorf("sluice %s --help = %d", c.Name(), code)
		}
		fmt.Fprintf(&page, ".SS sluice %s\n%s", c.Name(), roff(out.String()))
	}
	page.WriteString(".SH FILES\n.TP\n.I /run/sluice/api.sock\nthe unix socket of the commands, unless " +
		"\\-\\-api\\-socket or \\-\\-handover\\-socket says otherwise\n.SH EXIT STATUS\n0 if all went well, else 1, " +
		"with a sentence on standard error that says what to do.\n.SH SEE ALSO\n.BR nft (8),\n.BR iptables\\-save (8),\n.BR ipvsadm (8),\n" +
		".BR conntrack (8)\n")
	testbed.Golden(t, manPage, page.String())
	if _, err := exec.LookPath("groff"); err != nil {
		t.Log("groff is not there to look at the page")
		return
	}
	cmd := exec.Command("groff", "-man", "-ww", "-z", "-Tutf8")
	cmd.Stdin = strings.NewReader(page.String())
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("groff: %v\n%s", err, out)
	}
}
