package redirect

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sluice-lb/sluice/internal/netfilter"
)

// edit returns the input of iptables-restore --noflush that makes of the rules old,
// which are in force, the rules now, both of which are what shape.render returns, and the
// chains that it changes. It leaves
// alone the tables and chains that stay, since each table costs a grace period of the
// kernel (some 15 ms with nf_tables, 6.18), and in chains whose order does not matter
// also the rules that stay: a thousand take 50 ms.
func (s shape) edit(old, now []byte) ([]byte, []netfilter.Place) {
	was, is := parseRules(old), parseRules(now)
	var b script
	var changed []netfilter.Place
	for _, t := range tables {
		var heads, lines, gone []string
		for _, c := range is.chains(t.name, was) {
			had, stood := was[t.name][c]
			want, stays := is[t.name][c]
			if stood == stays && slices.Equal(had, want) {
				continue
			}
			changed = append(changed, netfilter.Place{Table: t.name, Chain: c})
			if !stays {
				gone = append(gone, c)
			} else if c == s.chain(chainUDP) || c == s.chain(chainSCTP) || s.isBucket(c) {
				if ops := exchange(had, want); stood && len(ops) <= len(want)/2 {
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
		for _, c := range gone {
			fmt.Fprintf(&b, "-X %s\n", c)
		}
		b.commit()
	}
	return b.Bytes(), changed
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

// ruleset has the rules of each chain of each table.
type ruleset map[string]map[string][]string

// chains returns the chains of a table in either of two sets of rules, sorted.
func (r ruleset) chains(table string, other ruleset) []string {
	all := slices.Concat(slices.Collect(maps.Keys(r[table])), slices.Collect(maps.Keys(other[table])))
	slices.Sort(all)
	return slices.Compact(all)
}

// parseRules reads what shape.render returns.
func parseRules(text []byte) ruleset {
	all := make(ruleset)
	var chains map[string][]string
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		if table, ok := strings.CutPrefix(line, "*"); ok {
			chains = make(map[string][]string)
			all[table] = chains
		}
		if head, ok := strings.CutPrefix(line, ":"); ok {
			chain, _, _ := strings.Cut(head, " ")
			chains[chain] = nil
		}
		if rule, ok := strings.CutPrefix(line, "-A "); ok {
			chain, _, _ := strings.Cut(rule, " ")
			chains[chain] = append(chains[chain], line)
		}
	}
	return all
}
