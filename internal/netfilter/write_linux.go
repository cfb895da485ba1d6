package netfilter

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
)

// Learn reads what the kernel holds, if that is not known: chains, and the members of
// sets, which it makes if they are not there. Write does it itself; it is for callers
// that need Members before they edit.
func (r *Ruleset) Learn(ctx context.Context) error {
	if r.state != unknown {
		return nil
	}
	for _, set := range r.layout.sets() {
		if err := set.Create(); err != nil {
			return err
		}
		list, err := set.Read()
		if err != nil {
			return err
		}
		r.members[set.Name].Found(list)
	}
	now, err := r.look(ctx)
	if err != nil {
		return err
	}
	r.found, r.state = now, learned
	return nil
}

// Write makes the kernel hold the ruleset, and nothing else of ours. The first Write, and
// each one after an error or after Verify returned false, reads what is there and writes
// everything; others write what was edited, by one run of iptables-restore at the most,
// and none if only members of sets changed.
//
// Members that are added come before rules, members that go, go after them, in the order
// of Layout.Sets. What is in the ruleset before and after stays in the kernel throughout.
// Jumps to chains that are there already come before anything else. between, if it is not
// nil, is called when all that is added is there, before members go.
func (r *Ruleset) Write(ctx context.Context, between func() error) error {
	if err := r.layout.Lease.grant(); err != nil { // before any jump that needs it
		return err
	}
	if err := r.Learn(ctx); err != nil {
		return err
	}
	whole := r.state == learned
	r.state, r.waiting = unknown, false
	if err := r.lead(ctx, whole); err != nil {
		return err
	}
	if err := r.grow(); err != nil {
		return err
	}
	err := r.writeRules(ctx, whole)
	if err != nil && !whole && ctx.Err() == nil { // perhaps another program has changed our chains
		if r.found, err = r.look(ctx); err == nil {
			err = r.writeRules(ctx, true)
		}
	}
	if err == nil && between != nil {
		err = between()
	}
	if err == nil {
		err = r.shrink()
	}
	if err == nil {
		r.settle()
	}
	return err
}

// settle is called when the kernel is as it is to be: nothing edited is left to write.
func (r *Ruleset) settle() {
	for _, at := range r.touched {
		c := r.chains[at]
		if r.counts[at.Table] += len(c.rules) - len(c.was); c.gone {
			delete(r.chains, at)
		} else {
			c.touched, c.fresh, c.was = false, false, nil
		}
	}
	for _, m := range r.members {
		m.Settle()
	}
	counts := maps.Clone(r.counts)
	r.layout.Counters.rules.Store(&counts)
	r.touched, r.moved, r.found, r.state = nil, false, held{}, known
}

// lead puts the jumps in place that lead to chains which are there.
func (r *Ruleset) lead(ctx context.Context, whole bool) error {
	if !whole && !r.moved {
		return nil
	}
	if !whole {
		var err error
		if r.found, err = r.look(ctx); err != nil {
			return err
		}
	}
	good := r.intact
	if whole {
		good = r.layout.inPlace // those of an earlier process are written again with the rules
	}
	moves := r.moves(r.found, slices.DeleteFunc(slices.Clone(r.jumps), func(j Jump) bool {
		_, there := r.found.own[Place{j.Table, j.To}]
		return !there
	}), good)
	if len(moves) == 0 {
		return nil
	}
	err := r.restore(ctx, moves)
	if err == nil {
		r.found, err = r.look(ctx)
	}
	if !whole {
		r.held.others = r.found.others
	}
	return err
}

// writeRules brings our chains and the jumps to them to what they are to be.
func (r *Ruleset) writeRules(ctx context.Context, whole bool) error {
	text, written := r.script(whole)
	moved := whole || r.moved
	if moved {
		text = append(text, r.moves(r.found, r.jumps, r.intact)...)
	}
	if len(text) > 0 {
		if err := r.await(); err != nil {
			return err
		}
		if err := r.restore(ctx, text); err != nil {
			return err
		}
	} else if !moved {
		return nil
	}
	return r.remember(ctx, written, whole)
}

// script returns the input of iptables-restore --noflush that brings the chains to what
// they are to be, and those that it changes: all of them if whole, which also removes
// others of ours that were found.
func (r *Ruleset) script(whole bool) ([]byte, []Place) {
	places := slices.Clone(r.touched)
	if whole {
		places = nil
		for at := range r.found.own {
			if r.chains[at] == nil {
				r.chains[at] = &chain{gone: true, touched: true}
				r.touched = append(r.touched, at)
			}
		}
		for at, c := range r.chains {
			if _, there := r.found.own[at]; there || !c.gone {
				places = append(places, at)
			}
		}
	}
	slices.SortFunc(places, Place.compare)
	var outer, inner, after []byte
	var written []Place
	for _, t := range r.layout.Tables {
		var first, last edits
		second := &first
		if t.Outer {
			second = &last
		}
		for _, at := range places {
			if at.Table == t.Name && r.chains[at].edits(at.Chain, whole, t.Outer, &first, second) {
				written = append(written, at)
			}
		}
		if t.Outer {
			outer, after = append(outer, first.text(t.Name)...), append(after, last.text(t.Name)...)
		} else {
			inner = append(inner, first.text(t.Name)...)
		}
	}
	return slices.Concat(outer, inner, after), written
}

// edits are operations of iptables-restore on one table, without the names of chains
// that are made or emptied.
type edits struct{ heads, rules, removed []string }

// edits adds what changes a chain to first, or, if it makes less match, to second. It
// reports false if nothing does.
func (c *chain) edits(name string, whole, outer bool, first, second *edits) bool {
	stood := !whole && !c.fresh
	switch {
	case c.gone && (whole || stood):
		second.remove(name)
		return true
	case c.gone, stood && slices.Equal(c.was, c.rules):
		return false
	case stood && c.unordered:
		// To write a thousand rules anew takes 50 ms.
		add, del := without(c.rules, c.was), without(c.was, c.rules)
		if outer || len(add)+len(del) <= len(c.rules)/2 {
			first.add("-A", name, add)
			second.add("-D", name, del)
			return len(add)+len(del) > 0
		}
	}
	first.heads = append(first.heads, name)
	first.add("-A", name, c.rules)
	return true
}

func (e *edits) add(op, chain string, rules []string) {
	for _, rule := range rules {
		e.rules = append(e.rules, op+" "+chain+" "+rule)
	}
}

func (e *edits) remove(chain string) {
	e.heads, e.removed = append(e.heads, chain), append(e.removed, chain)
}

// text returns one transaction; nil if there is nothing to do.
func (e edits) text(table string) []byte {
	if len(e.heads)+len(e.rules) == 0 {
		return nil
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "*%s\n", table)
	for _, name := range e.heads {
		fmt.Fprintf(&b, ":%s - [0:0]\n", name) // makes it, or empties it
	}
	for _, rule := range e.rules {
		b.WriteString(rule)
		b.WriteByte('\n')
	}
	for _, name := range e.removed {
		fmt.Fprintf(&b, "-X %s\n", name)
	}
	b.WriteString("COMMIT\n")
	return b.Bytes()
}

// without returns the rules of a list that another one does not have, each as often as it has
// fewer of it.
func without(list, other []string) (out []string) {
	count := make(map[string]int, len(other))
	for _, rule := range other {
		count[rule]++
	}
	for _, rule := range list {
		if count[rule]--; count[rule] < 0 {
			out = append(out, rule)
		}
	}
	return out
}

// await waits for packets that have read sets as they were, if there may be any.
func (r *Ruleset) await() error {
	if !r.waiting {
		return nil
	}
	r.waiting = false
	return AwaitReaders()
}

// sets returns all sets in the order in which they grow.
func (l *Layout) sets() (out []Set) {
	for _, g := range l.Sets {
		out = append(out, g.Sets...)
	}
	return append(out, l.Inner...)
}

// grow adds the members that are missing.
func (r *Ruleset) grow() error {
	for i, g := range r.layout.Sets {
		grown := false
		for _, set := range g.Sets {
			changed, err := r.changeSet(set, true)
			if err != nil {
				return err
			}
			grown = grown || changed
		}
		r.waiting = r.waiting || grown && i+1 < len(r.layout.Sets)
	}
	return nil
}

// shrink deletes the members that are surplus.
func (r *Ruleset) shrink() error {
	shrunk := false // sets of later groups
	for _, g := range slices.Backward(r.layout.Sets) {
		r.waiting = r.waiting || g.Late && shrunk
		for _, set := range slices.Backward(g.Sets) {
			changed, err := r.changeSet(set, false)
			if err != nil {
				return err
			}
			shrunk = shrunk || changed
		}
	}
	return nil
}

// Grow adds the members that an inner set lacks, and Shrink deletes those that are surplus.
// They are for within Write's between.
func (r *Ruleset) Grow(set Set) error {
	_, err := r.changeSet(set, true)
	return err
}

// Shrink is described at Grow.
func (r *Ruleset) Shrink(set Set) error {
	_, err := r.changeSet(set, false)
	return err
}

// changeSet adds the members that a set lacks, or deletes those that are surplus. It reports
// whether there were any.
func (r *Ruleset) changeSet(set Set, add bool) (changed bool, err error) {
	refs := r.members[set.Name]
	list, change, done := refs.Missing(), set.Add, refs.Grown
	if !add {
		list, change, done = refs.Surplus(), set.Delete, refs.Shrunk
	}
	if len(list) == 0 {
		return false, nil
	}
	if err := r.await(); err != nil {
		return false, err
	}
	what := list
	if set.Marks && !add {
		what = obsolete(list, refs.Kept())
	}
	sent, err := change(what)
	r.layout.Counters.SetOps.Add(sent)
	if err != nil {
		return false, err
	}
	done()
	return true, nil
}

// obsolete returns which surplus members of a set with marks are to be deleted. Where one is
// kept that differs in its mark only, adding that has overwritten it.
func obsolete(surplus, kept []Member) (out []Member) {
	there := make(map[Member]bool, len(kept))
	for _, m := range kept {
		m.Mark = 0
		there[m] = true
	}
	for _, m := range surplus {
		if m.Mark = 0; !there[m] {
			out = append(out, m)
		}
	}
	return out
}
