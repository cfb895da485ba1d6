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
	for _, at := range slices.SortedFunc(maps.Keys(saved), Place.compare) {
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
