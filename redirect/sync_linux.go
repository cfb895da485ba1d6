package redirect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-iptables/iptables"

	"github.com/sluice-lb/sluice/internal/netfilter"
)

// kernel is what a steerer knows of its host, and what it wrote there last.
type kernel struct {
	ipt    *iptables.IPTables // nil until found
	path   string             // of the iptables program
	nft    bool               // its backend is nf_tables
	probed bool               // the following are complete
	shape  shape
	facts  Facts

	rules []byte // nil if unknown
	sets  sets   // nil if unknown or not used
	held  held   // how the kernel held the rules when they were last written
	jumps []jump // that some plan has needed so far

	leftovers []string // buckets that were found before rules were known

	// last is a copy of the plan that is in force, whole, and own this family's part of
	// it. inForce is false after an error; and nothing is known while rules is nil.
	last, own Plan
	inForce   bool
	once      bool // last.TCP has each frontend of this family once

	udp     map[netip.AddrPort]path // what becomes of UDP clients; nil before the first Sync
	oldGone bool                    // kube-proxy's userspace mode has no chains left

	// changed are UDP frontends whose conntrack entries have not been looked at
	// since a change. They outlive a failed Sync.
	changed map[netip.AddrPort]bool
}

func (k *kernel) sync(ctx context.Context, t *IPTables, plan Plan) error {
	// Most changes of Services are changes of endpoints, which are none here, or of
	// one family. To compare costs a hundredth of working out the difference.
	known := k.inForce && k.rules != nil
	if known && k.last.Equal(plan) {
		return nil
	}
	if done, err := t.tcpOnly(plan); done || err != nil {
		return err
	}
	p, err := plan.family(t.IPv6)
	if err != nil {
		return err
	}
	if known && k.own.Equal(p) {
		k.keep(plan, p)
		return nil
	}
	k.inForce = false
	defer func() {
		if err == nil {
			k.keep(plan, p)
			k.inForce = true
		}
	}()
	if _, err = k.probe(ctx, t); err != nil {
		return err
	}
	if k.rules == nil {
		if err = k.findLeftovers(); err != nil {
			return err
		}
	}
	k.noteFlows(p.udp())
	if err = t.write(ctx, p); err != nil {
		k.rules, k.sets = nil, nil
		return err
	}
	if err = t.removeOldMode(ctx); err != nil {
		return err
	}
	err = t.forgetFlows()
	return err
}

// keep remembers a plan, and this family's part of it.
func (k *kernel) keep(plan, own Plan) {
	k.last, k.own = plan.clone(), own
	n := 0
	for _, addr := range plan.TCP {
		if addr.Addr().Unmap().Is6() == k.shape.ipv6 {
			n++
		}
	}
	k.once = n == len(own.TCP)
}

// write brings rules and sets to the plan. Members that rules may need come
// before the rules, others go after, so that what is in the old and in the new
// plan is steered, or refused, at every moment in between.
//
// A packet reads one set after the other, and sees each as it is at that moment. Where
// that matters, which is where who may ask changes, the next set changes only when
// packets that have read the one before as it was are gone.
func (t *IPTables) write(ctx context.Context, p Plan) error {
	k := &t.kernel
	whole := k.rules == nil
	rules := k.shape.render(p)
	want := sets{}
	if k.shape.sets {
		want = members(p)
		if whole {
			if err := k.readSets(); err != nil {
				return err
			}
		}
	}
	if err := t.lead(ctx, p); err != nil {
		return err
	}
	come, gone := want.without(k.sets), k.sets.without(want)
	for _, step := range []func() error{
		func() error { return t.addTo(setsOfWho, come) },
		settleIf(come.any(setsOfWho) && come.any(setsThatScreen)),
		func() error { return t.addTo(setsThatScreen, come) },
		settleIf(come.any(setsThatScreen)),
		func() error { return t.addTo(setsThatServe, come) },
		func() error { return t.writeRules(ctx, rules) },
		func() error { return t.deleteFrom(setsThatServe, gone) },
		func() error { return t.deleteFrom(setsThatScreen, gone) },
		settleIf(gone.any(setsThatScreen) && gone.any(setsOfWho)),
		func() error { return t.deleteFrom(setsOfWho, gone) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	k.rules, k.sets = rules, want
	return nil
}

// settleIf returns a step that waits, if it has to, until packets that have read sets as
// they were are gone.
func settleIf(needed bool) func() error {
	if needed {
		return netfilter.AwaitReaders
	}
	return func() error { return nil }
}

// addTo adds members to sets, one after the other.
func (t *IPTables) addTo(names []string, come sets) error {
	for _, name := range names {
		if err := t.changeSet(netfilter.Set.Add, name, come[name]); err != nil {
			return err
		}
	}
	return nil
}

// deleteFrom deletes members from sets, in the reverse of the order of addTo.
func (t *IPTables) deleteFrom(names []string, gone sets) error {
	for _, name := range slices.Backward(names) {
		if err := t.changeSet(netfilter.Set.Delete, name, gone[name]); err != nil {
			return err
		}
	}
	return nil
}

// lead puts the jumps in place that no plan has needed before p, as far as the chains that
// they lead to are there: before anything is steered that they are to screen.
func (t *IPTables) lead(ctx context.Context, p Plan) error {
	k := &t.kernel
	want := slices.DeleteFunc(slices.Clone(jumps), func(j jump) bool {
		return j.needed != nil && !j.needed(p) && !slices.ContainsFunc(k.jumps, j.same)
	})
	if len(want) == len(k.jumps) {
		return nil
	}
	k.jumps = want
	if k.rules != nil {
		return t.replace(ctx, nil, k.rules, nil)
	}
	now, err := k.look(ctx, nil)
	if err != nil {
		return err
	}
	left := slices.DeleteFunc(slices.Clone(want), func(j jump) bool { // of an earlier run, if any
		return len(now[netfilter.Place{Table: j.table, Chain: k.shape.chain(j.to)}]) == 0
	})
	script, err := k.misplaced(now, left)
	if script == nil || err != nil {
		return err
	}
	return t.restore(ctx, script)
}

// readSets makes the sets that are missing and reads those that are left of an
// earlier run, or were changed by others.
func (k *kernel) readSets() error {
	if err := k.shape.createSets(); err != nil {
		return err
	}
	all, err := k.shape.readSets()
	k.sets = all
	return err
}

// changeSet adds members to a set or deletes them.
func (t *IPTables) changeSet(change func(netfilter.Set, []member) (uint64, error), name string, list []member) error {
	sent, err := change(t.kernel.shape.kernelSet(name), list)
	t.setOps.Add(sent)
	return err
}

// writeRules brings our chains to rules: by what differs from those that were written
// last, or, if others have changed these meanwhile, whole.
func (t *IPTables) writeRules(ctx context.Context, rules []byte) error {
	k := &t.kernel
	old := k.leftovers
	if k.rules != nil {
		if bytes.Equal(rules, k.rules) {
			return nil
		}
		script, changed := k.shape.edit(k.rules, rules)
		if err := t.replace(ctx, script, rules, changed); err == nil || ctx.Err() != nil {
			return err
		}
		old = nil
		for _, at := range k.shape.buckets(k.rules) {
			old = append(old, at.Chain)
		}
	}
	now := k.shape.buckets(rules)
	old = slices.DeleteFunc(old, func(c string) bool { return slices.Contains(now, netfilter.Place{Table: "nat", Chain: c}) })
	maps.DeleteFunc(k.held, func(at netfilter.Place, _ []netfilter.Rule) bool { return k.shape.isBucket(at.Chain) })
	return t.replace(ctx, slices.Concat(rules, removal("nat", old)), rules, now)
}

// replace runs the script that makes rules of what is in our chains, puts the jumps to
// them where they belong, and remembers how the kernel holds what has been changed and
// all that is not in buckets.
func (t *IPTables) replace(ctx context.Context, script, rules []byte, changed []netfilter.Place) error {
	k := &t.kernel
	if len(script) > 0 {
		if err := t.restore(ctx, script); err != nil {
			return err
		}
	}
	now, err := k.look(ctx, changed)
	if err != nil {
		return err
	}
	moves, err := k.misplaced(now, k.jumps)
	if err != nil {
		return err
	}
	if moves != nil {
		if err := t.restore(ctx, moves); err != nil {
			return err
		}
		if now, err = k.look(ctx, changed); err != nil {
			return err
		}
	}
	k.held = k.held.with(now)
	counts := countRules(rules)
	t.rules.Store(&counts)
	return now.check(k.shape, rules, k.jumps)
}

// countRules counts the rules of each table in the input of iptables-restore.
func countRules(rules []byte) (counts []TableRules) {
	for line := range strings.Lines(string(rules)) {
		switch line[0] {
		case '*':
			counts = append(counts, TableRules{Table: strings.TrimSpace(line[1:])})
		case '-':
			counts[len(counts)-1].Rules++
		}
	}
	return counts
}

// restore runs iptables-restore once, and counts it.
func (t *IPTables) restore(ctx context.Context, rules []byte) error {
	t.restores.Add(1)
	err := t.kernel.restore(ctx, t.kernel.shape, rules)
	if err != nil {
		t.failures.Add(1)
	}
	return err
}

// restore runs iptables-restore once. Each table is one transaction.
func (k *kernel) restore(ctx context.Context, s shape, rules []byte) error {
	return netfilter.Restore(ctx, k.path+"-restore", k.nft, s.ipv6, rules)
}

// misplaced returns the input of iptables-restore that makes the jumps the first
// rules of their chains, nil if they are.
func (k *kernel) misplaced(now held, list []jump) ([]byte, error) {
	var b script
	for _, j := range list {
		at, to := netfilter.Place{Table: j.table, Chain: j.from}, k.shape.chain(j.to)
		rules, spec := now[at], j.spec()
		there := slices.ContainsFunc(rules, func(r netfilter.Rule) bool { return r.Target == to })
		first := there && rules[0].Target == to
		if first && len(k.held[at]) > 0 && rules[0] == k.held[at][0] {
			continue
		}
		if there {
			var err error
			if there, err = k.ipt.Exists(j.table, j.from, spec...); err != nil {
				return nil, fmt.Errorf("look for jump in chain %s of table %s: %w", j.from, j.table, netfilter.LockError(err))
			}
			if there && first {
				continue
			}
		}
		b.table(j.table)
		if there {
			b.line("-D", j.from, spec)
		}
		b.line("-I", j.from, spec)
		b.commit()
	}
	return b.Bytes(), nil
}

// findLeftovers looks for buckets, and the first time also for the UDP frontends that
// are steered, as an earlier process may have left them.
func (k *kernel) findLeftovers() error {
	chains, err := k.chains("nat")
	if err != nil {
		return err
	}
	k.leftovers = slices.DeleteFunc(chains, func(c string) bool { return !k.shape.isBucket(c) })
	if k.udp != nil {
		return nil
	}
	for _, c := range append([]string{k.shape.chain(chainUDP)}, k.leftovers...) {
		rules, err := k.list("nat", c)
		if err != nil {
			return err
		}
		for _, p := range portedBy(rules, k.shape.ipv6) {
			k.change(p.Frontend.Addr)
		}
	}
	return nil
}

// change adds to changed.
func (k *kernel) change(f netip.AddrPort) {
	if k.changed == nil {
		k.changed = make(map[netip.AddrPort]bool)
	}
	k.changed[f] = true
}

// noteFlows adds to changed the UDP frontends of which something else becomes than
// before, and all if rules may have been lost.
func (k *kernel) noteFlows(udp map[netip.AddrPort]path) {
	for f, p := range udp {
		if was, ok := k.udp[f]; !ok || k.rules == nil || !was.equal(p) {
			k.change(f)
		}
	}
	for f := range k.udp {
		if _, ok := udp[f]; !ok {
			k.change(f)
		}
	}
	k.udp = udp
}

// forgetFlows deletes conntrack entries of changed frontends that are stale.
func (t *IPTables) forgetFlows() error {
	k := &t.kernel
	if len(k.changed) == 0 {
		return nil
	}
	start := time.Now()
	n, err := deleteFlows(flowFilter{changed: k.changed, paths: k.udp}, t.IPv6)
	t.flows.Add(n)
	if t.ObserveFlows != nil {
		t.ObserveFlows(time.Since(start))
	}
	if err == nil {
		clear(k.changed)
	}
	return err
}

// chains returns the names of all chains of a table, none if it does not exist.
func (k *kernel) chains(table string) ([]string, error) {
	if !k.nft {
		out, err := k.ipt.ListChains(table)
		if err != nil {
			return nil, fmt.Errorf("list chains of table %s: %w", table, netfilter.LockError(err))
		}
		return out, nil
	}
	chains, err := netfilter.NFTChains(netfilter.Family(k.shape.ipv6), table)
	if err != nil {
		return nil, err
	}
	out := make([]string, 0, len(chains))
	for _, c := range chains {
		out = append(out, c.Name)
	}
	return out, nil
}

// list returns the rules of a chain, none if it does not exist.
func (k *kernel) list(table, chain string) ([]string, error) {
	if k.nft {
		// iptables-nft's own message for a chain of a table that does not exist
		// cannot be told from others.
		chains, err := k.chains(table)
		if err != nil || !slices.Contains(chains, chain) {
			return nil, err
		}
	}
	out, err := k.ipt.List(table, chain)
	if absent(err) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("list chain %s of table %s: %w", chain, table, netfilter.LockError(err))
	}
	return slices.DeleteFunc(out, func(r string) bool { return !strings.HasPrefix(r, "-A ") }), nil
}

// absent reports whether iptables failed because a chain does not exist.
func absent(err error) bool {
	var e *iptables.Error
	return errors.As(err, &e) && e.IsNotExist()
}
