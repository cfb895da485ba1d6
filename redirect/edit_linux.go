package redirect

import (
	"fmt"
	"slices"
	"strings"
)

// edit returns the input of iptables-restore --noflush that makes of the rules old,
// which are in force, the rules now; both are what shape.render returns. It leaves
// alone the tables and chains that stay, since each table costs a grace period of the
// kernel (some 15 ms with nf_tables, 6.18), and in chains whose order does not matter
// also the rules that stay: a thousand take 50 ms.
func (s shape) edit(old, now []byte) []byte {
	was, is := parseRules(old), parseRules(now)
	var b script
	for _, t := range tables {
		var heads, lines []string
		for _, c := range t.chains {
			c = s.chain(c)
			had, want := was[t.name][c], is[t.name][c]
			if slices.Equal(had, want) {
				continue
			}
			if c == s.chain(chainUDP) || c == s.chain(chainSCTP) {
				if ops := exchange(had, want); len(ops) <= len(want)/2 {
					lines = append(lines, ops...)
					continue
				}
			}
			heads, lines = append(heads, c), append(lines, want...)
		}
		if len(lines) == 0 && len(heads) == 0 {
			continue
		}
		b.table(t.name)
		for _, c := range heads {
			b.chain(c) // which empties it
		}
		for _, line := range lines {
			fmt.Fprintln(&b, line)
		}
		b.commit()
	}
	return b.Bytes()
}

// exchange returns the operations that make of the rules had the rules want, in any
// order.
func exchange(had, want []string) (ops []string) {
	count := make(map[string]int, len(had))
	for _, line := range had {
		count[line]++
	}
	for _, line := range want {
		if count[line]--; count[line] < 0 {
			ops = append(ops, line)
		}
	}
	for _, line := range had {
		if count[line] > 0 {
			count[line]--
			ops = append(ops, "-D"+strings.TrimPrefix(line, "-A"))
		}
	}
	return ops
}

// parseRules returns the rules of each chain of each table.
func parseRules(text []byte) map[string]map[string][]string {
	all := make(map[string]map[string][]string)
	var chains map[string][]string
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		if table, ok := strings.CutPrefix(line, "*"); ok {
			chains = make(map[string][]string)
			all[table] = chains
		}
		if rule, ok := strings.CutPrefix(line, "-A "); ok {
			chain, _, _ := strings.Cut(rule, " ")
			chains[chain] = append(chains[chain], line)
		}
	}
	return all
}
