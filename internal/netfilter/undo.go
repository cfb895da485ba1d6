package netfilter

import (
	"bytes"
	"fmt"
	"strings"
)

// Undo reads the output of iptables-save and returns the input of
// iptables-restore --noflush that removes the chains for which removable is true,
// and every rule that leads to one; nil if there is none. A rule is deleted by its
// own text as saved, so it does not matter how it was written.
func Undo(save []byte, removable func(table, chain string) bool) []byte {
	var out bytes.Buffer
	var table string
	var jumps, chains []string
	for line := range strings.Lines(string(save)) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(line, "*"):
			table, jumps, chains = line[1:], nil, nil
		case strings.HasPrefix(line, ":"):
			if chain, _, _ := strings.Cut(line[1:], " "); removable(table, chain) {
				chains = append(chains, chain)
			}
		case strings.HasPrefix(line, "-A "):
			w := Words(line)
			if len(w) > 1 && !removable(table, w[1]) && removable(table, Target(w)) {
				jumps = append(jumps, line[len("-A "):])
			}
		case line == "COMMIT" && len(jumps)+len(chains) > 0:
			fmt.Fprintf(&out, "*%s\n", table)
			for _, op := range []struct {
				verb  string
				specs []string
			}{{"-D", jumps}, {"-F", chains}, {"-X", chains}} {
				for _, spec := range op.specs {
					fmt.Fprintf(&out, "%s %s\n", op.verb, spec)
				}
			}
			out.WriteString("COMMIT\n")
		}
	}
	return out.Bytes()
}

// Target returns where a rule, split into words, jumps or goes to.
func Target(w []string) string {
	for i := 0; i+1 < len(w); i++ {
		if w[i] == "-j" || w[i] == "-g" {
			return w[i+1]
		}
	}
	return ""
}

// Words splits a rule as iptables-restore does: at spaces that are not within
// double quotes, where a backslash escapes the next character.
func Words(line string) []string {
	var out []string
	var word strings.Builder
	in, quoted := false, false
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case quoted && c == '\\' && i+1 < len(line):
			i++
			word.WriteByte(line[i])
		case c == '"':
			quoted = !quoted
			in = true
		case c == ' ' && !quoted:
			if in {
				out = append(out, word.String())
				word.Reset()
			}
			in = false
		default:
			word.WriteByte(c)
			in = true
		}
	}
	if in {
		out = append(out, word.String())
	}
	return out
}
