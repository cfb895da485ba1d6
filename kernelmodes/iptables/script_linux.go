package iptables

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	"github.com/sluice-lb/sluice/internal/netfilter"
)

// part is what changes in one table.
type part struct {
	table  string
	write  []chain  // chains that are made or written anew
	remove []string // chains
	add    []entry
	drop   []entry
	open   []bucket // that get their first entry
	close  []bucket // that lose their last
}

func (p *part) empty() bool {
	return len(p.write)+len(p.remove)+len(p.add)+len(p.drop)+len(p.open)+len(p.close) == 0
}

// difference returns what has to change to come from was to c. was is nil if nothing
// is there.
func (c *content) difference(was *content) map[string]*part {
	parts := make(map[string]*part)
	for _, t := range tables {
		parts[t.name] = &part{table: t.name}
	}
	if was == nil {
		was = &content{}
		for _, t := range tables {
			for _, name := range t.chains {
				if !slices.ContainsFunc(c.static, func(x chain) bool { return x.table == t.name && x.name == name }) {
					parts[t.name].write = append(parts[t.name].write, chain{t.name, name, nil}) // holds buckets
				}
			}
		}
	}
	change(parts, was.static, c.static)
	for _, id := range c.changed(was) {
		changeUnit(parts, was.unit(id), c.unit(id))
	}
	for b := range c.buckets {
		if was.buckets[b] == 0 {
			parts[b.table].open = append(parts[b.table].open, b)
		}
	}
	for b := range was.buckets {
		if c.buckets[b] == 0 {
			parts[b.table].close = append(parts[b.table].close, b)
		}
	}
	for _, p := range parts {
		byName := func(a, b bucket) int { return cmp.Compare(a.name, b.name) }
		slices.SortFunc(p.open, byName)
		slices.SortFunc(p.close, byName)
	}
	return parts
}

func changeUnit(parts map[string]*part, old, u *unit) {
	if old == nil {
		old = &unit{}
	}
	if u == nil {
		u = &unit{}
	}
	change(parts, old.chains, u.chains)
	for _, e := range old.entries {
		if !slices.Contains(u.entries, e) {
			parts[e.bucket.table].drop = append(parts[e.bucket.table].drop, e)
		}
	}
	for _, e := range u.entries {
		if !slices.Contains(old.entries, e) {
			parts[e.bucket.table].add = append(parts[e.bucket.table].add, e)
		}
	}
}

// change compares chains by their names.
func change(parts map[string]*part, old, now []chain) {
	rules := make(map[string][]string, len(old))
	for _, c := range old {
		rules[c.table+" "+c.name] = c.rules
	}
	for _, c := range now {
		key := c.table + " " + c.name
		if was, ok := rules[key]; !ok || !slices.Equal(was, c.rules) {
			parts[c.table].write = append(parts[c.table].write, c)
		}
		delete(rules, key)
	}
	for _, c := range old {
		if _, left := rules[c.table+" "+c.name]; left {
			parts[c.table].remove = append(parts[c.table].remove, c.name)
		}
	}
}

// script returns the input of iptables-restore --noflush for a part: one transaction.
// Rules of chains that are removed go with them.
func (p *part) script() []byte {
	var b bytes.Buffer
	if p.empty() {
		return nil
	}
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("*%s", p.table)
	declare := func(name string) { line(":%s - [0:0]", name) } // empties it too
	for _, c := range p.write {
		declare(c.name)
	}
	for _, open := range p.open {
		declare(open.name)
	}
	for _, c := range p.write {
		for _, r := range c.rules {
			line("-A %s %s", c.name, r)
		}
	}
	for _, e := range p.drop {
		line("-D %s %s", e.bucket.name, e.rule)
	}
	for _, e := range p.add {
		line("-A %s %s", e.bucket.name, e.rule)
	}
	for _, open := range p.open {
		line("-A %s %s -j %s", open.from, open.match, open.name)
	}
	for _, close := range p.close {
		line("-D %s %s -j %s", close.from, close.match, close.name)
	}
	for _, name := range p.remove {
		declare(name)
	}
	for _, name := range p.remove {
		line("-X %s", name)
	}
	for _, close := range p.close {
		line("-X %s", close.name)
	}
	line("COMMIT")
	return b.Bytes()
}

// split divides a part into what makes more answers and what makes fewer: entries that
// are added, and entries that are dropped.
func (p *part) split() (first, last *part) {
	first = &part{table: p.table, write: p.write, add: p.add, open: p.open}
	last = &part{table: p.table, remove: p.remove, drop: p.drop, close: p.close}
	return first, last
}

// script returns the input of iptables-restore that makes the kernel come from one
// content to another. The filter table answers only what nat leaves alone, so that an
// address is answered by one of them at every moment if its answer is there before
// nat's goes, and goes after nat's has come.
func script(parts map[string]*part) []byte {
	first, last := parts["filter"].split()
	return slices.Concat(first.script(), parts["nat"].script(), last.script())
}

// expect returns the chains that the scripts of parts write to, and how many rules
// each is to have then.
func (c *content) expect(parts map[string]*part) map[netfilter.Place]int {
	n := make(map[netfilter.Place]int)
	from := make(map[netfilter.Place]int)
	for b := range c.buckets {
		from[netfilter.Place{Table: b.table, Chain: b.from}]++
	}
	for _, p := range parts {
		for _, list := range [][]bucket{p.open, p.close} {
			for _, b := range list {
				n[netfilter.Place{Table: p.table, Chain: b.name}] = c.buckets[b]
				at := netfilter.Place{Table: p.table, Chain: b.from}
				n[at] = from[at]
			}
		}
		for _, list := range [][]entry{p.add, p.drop} {
			for _, e := range list {
				n[netfilter.Place{Table: p.table, Chain: e.bucket.name}] = c.buckets[e.bucket]
			}
		}
		for _, x := range p.write {
			at := netfilter.Place{Table: p.table, Chain: x.name}
			if _, ok := n[at]; !ok {
				n[at] = len(x.rules)
			}
		}
		for _, name := range p.remove {
			n[netfilter.Place{Table: p.table, Chain: name}] = 0
		}
	}
	return n
}
