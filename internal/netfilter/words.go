package netfilter

import "strings"

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
