package netfilter

import (
	"maps"
	"slices"
	"strings"
)

// Undo reads the output of iptables-save and returns the input of
// iptables-restore --noflush that removes the chains for which removable is true,
// and every rule that leads to one; nil if there is none. A rule is deleted by its
// own text as saved, so it does not matter how it was written.
func Undo(save []byte, removable func(table, chain string) bool) (text []byte) {
	saved := savedRules(string(save), "")
	tables := make(map[string]*edits)
	for _, at := range sortedPlaces(saved) {
		e := tables[at.Table]
		if e == nil {
			e = new(edits)
			tables[at.Table] = e
		}
		if removable(at.Table, at.Chain) {
			e.remove(at.Chain)
			continue
		}
		for _, r := range saved[at] {
			if removable(at.Table, r.Target) {
				e.rules = append(e.rules, "-D "+r.ID)
			}
		}
	}
	for _, table := range slices.Sorted(maps.Keys(tables)) {
		text = append(text, tables[table].text(table)...)
	}
	return text
}

// savedRules returns the chains in the output of iptables-save. The id of a rule is its
// text without "-A". Of targets it knows only those that begin with prefix.
func savedRules(save, prefix string) map[Place][]Rule {
	out := make(map[Place][]Rule)
	var at Place
	for line := range strings.Lines(save) {
		line = strings.TrimSuffix(line, "\n")
		if table, ok := strings.CutPrefix(line, "*"); ok {
			at.Table = table
		} else if chain, ok := strings.CutPrefix(line, ":"); ok {
			at.Chain, _, _ = strings.Cut(chain, " ")
			out[at] = nil
		} else if text, ok := strings.CutPrefix(line, "-A "); ok {
			at.Chain, _, _ = strings.Cut(text, " ")
			rule := Rule{ID: text}
			if strings.Contains(text, " "+prefix) {
				rule.Target = Target(Words(text))
			}
			out[at] = append(out[at], rule)
		}
	}
	return out
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
