package iptables

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/lb"
)

// kernel is what an engine knows of its host, and what it wrote there last.
type kernel struct {
	path     string // of the iptables program; empty until probed
	nft      bool   // its backend is nf_tables
	facts    Facts
	services lb.Mirror
	used     bool     // there has been something to write
	clean    bool     // nothing of an earlier process is left
	last     *content // nil if it is not known what is there
	held     held     // how the kernel held it when it was written
	flows    flows
	verified uint32 // nf_tables' generation when all was last found as held; 0: never
}

func (k *kernel) sync(ctx context.Context, e *Engine, d *lb.Delta, node lb.Node) error {
	k.services.Fold(d, e.IPv6)
	var services []lb.Service
	for _, id := range slices.SortedFunc(maps.Keys(k.services.Services()), compareID) {
		services = append(services, *k.services.Services()[id])
	}
	if len(services) == 0 && !k.used {
		return k.leave(ctx, e)
	}
	if _, err := k.probe(ctx, e); err != nil {
		return err
	}
	k.used = true
	s := shape{ipv6: e.IPv6, mark: e.mark(), all: e.MasqueradeAll, liberal: e.Liberal, randomFully: k.facts.RandomFully, bpf: k.facts.BPF, noLocalhost: e.NoLocalhost, local: e.pods(node)}
	now := k.last.next(s, services)
	if k.last == nil {
		k.flows.changeAll(now)
	} else {
		k.flows.change(k.last, now)
	}
	if err := k.write(ctx, e, now); err != nil {
		k.last = nil
		return err
	}
	k.last = now
	n, err := k.flows.forget(e.IPv6, now)
	e.flows.Add(n)
	return err
}

func (e *Engine) mark() uint32 {
	const standard = 1 << 14
	if e.MasqueradeMark == 0 {
		return standard
	}
	return e.MasqueradeMark
}

// write brings the kernel to now.
func (k *kernel) write(ctx context.Context, e *Engine, now *content) error {
	parts := now.difference(k.last)
	whole := k.last == nil
	if whole {
		if err := k.removeOthers(ctx, e, parts); err != nil {
			return err
		}
	}
	text := script(parts)
	if len(text) == 0 {
		return nil
	}
	if whole && k.flawed(ctx, e) {
		// A jump may lead to a chain of ours from where it should not.
		if err := k.removeJumps(ctx, e); err != nil {
			return err
		}
	}
	k.verified = 0
	if err := k.restore(ctx, e, text); err != nil {
		return err
	}
	expect := now.expect(parts)
	if whole {
		return k.settle(ctx, e, expect)
	}
	have, err := k.read(ctx, e, expect)
	if err != nil {
		return err
	}
	if err := have.check(expect); err != nil {
		return err
	}
	for at := range expect {
		k.held.set(at, have[at])
	}
	e.count(k.held)
	return nil
}

// settle puts the jumps where they belong, and remembers how the kernel holds it all.
func (k *kernel) settle(ctx context.Context, e *Engine, expect map[netfilter.Place]int) error {
	now, err := k.look(ctx, e)
	if err != nil {
		return err
	}
	if text := misplaced(now); len(text) > 0 {
		if err := k.restore(ctx, e, text); err != nil {
			return err
		}
		if now, err = k.look(ctx, e); err != nil {
			return err
		}
	}
	if err := now.check(expect); err != nil {
		return err
	}
	if len(misplaced(now)) > 0 {
		return fmt.Errorf("the jumps that were just put into the chains of the kernel are not in place: another program is changing them")
	}
	k.held = now
	e.count(now)
	return nil
}

// count keeps the numbers of rules for Stats.
func (e *Engine) count(h held) {
	nat, all := 0, 0
	for at, x := range h {
		if !ours(at.Table, at.Chain) {
			continue
		}
		if all += x.rules; at.Table == "nat" {
			nat += x.rules
		}
	}
	e.natRules.Store(int64(nat))
	e.allRules.Store(int64(all))
}

func (k *kernel) restore(ctx context.Context, e *Engine, text []byte) error {
	e.restores.Add(1)
	return netfilter.Restore(ctx, k.path+"-restore", k.nft, e.IPv6, text)
}

// removeOthers adds to parts the chains that an earlier process has left and that are
// not wanted any more.
func (k *kernel) removeOthers(ctx context.Context, e *Engine, parts map[string]*part) error {
	for table, p := range parts {
		there, err := k.chains(ctx, e, table)
		if err != nil {
			return err
		}
		wanted := make(map[string]bool)
		for _, c := range p.write {
			wanted[c.name] = true
		}
		for _, b := range p.open {
			wanted[b.name] = true
		}
		p.remove = slices.DeleteFunc(there, func(name string) bool { return wanted[name] })
		slices.Sort(p.remove)
	}
	return nil
}

// chains returns the names of our chains in a table.
func (k *kernel) chains(ctx context.Context, e *Engine, table string) ([]string, error) {
	var out []string
	if k.nft {
		all, err := netfilter.NFTChains(netfilter.Family(e.IPv6), table)
		for _, c := range all {
			if ours(table, c.Name) {
				out = append(out, c.Name)
			}
		}
		return out, err
	}
	save, err := netfilter.Run(ctx, nil, k.path+"-save", "-t", table)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(save)) {
		if name, ok := strings.CutPrefix(line, ":"); ok {
			if name, _, _ = strings.Cut(name, " "); ours(table, name) {
				out = append(out, name)
			}
		}
	}
	return out, nil
}

// flawed reports whether another chain than those of the kernel leads to ours, so that
// ours cannot be removed.
func (k *kernel) flawed(ctx context.Context, e *Engine) bool {
	now, err := k.look(ctx, e)
	if err != nil {
		return false // the next to look says why
	}
	for at, x := range now {
		if !ours(at.Table, at.Chain) && x.foreign {
			return true
		}
	}
	return false
}

// removeJumps removes every rule in others' chains that leads to a chain of ours other
// than those that jumps lead to.
func (k *kernel) removeJumps(ctx context.Context, e *Engine) error {
	save, err := netfilter.Run(ctx, nil, k.path+"-save")
	if err != nil {
		return err
	}
	var b bytes.Buffer
	table := ""
	for line := range strings.Lines(string(save)) {
		line = strings.TrimSuffix(line, "\n")
		if name, ok := strings.CutPrefix(line, "*"); ok {
			table = name
		}
		w := netfilter.Words(line)
		if len(w) > 1 && w[0] == "-A" && !ours(table, w[1]) && ours(table, netfilter.Target(w)) && !isJump(table, w[1], netfilter.Target(w)) {
			fmt.Fprintf(&b, "*%s\n-D %s\nCOMMIT\n", table, strings.TrimPrefix(line, "-A "))
		}
	}
	if b.Len() == 0 {
		return nil
	}
	return k.restore(ctx, e, b.Bytes())
}

// isJump reports whether a rule with a target is one of jumps.
func isJump(table, from, to string) bool {
	return slices.ContainsFunc(jumps, func(j jump) bool { return j.table == table && j.from == from && j.to == to })
}

// leave removes what an earlier process has left, once, if there is nothing to forward.
func (k *kernel) leave(ctx context.Context, e *Engine) error {
	if k.clean {
		return nil
	}
	for _, command := range netfilter.Backends(e.IPv6) {
		if err := cleanupBackend(ctx, command, e.IPv6); err != nil {
			return err
		}
	}
	k.clean = true
	return nil
}

// probe finds out what there is.
func (k *kernel) probe(ctx context.Context, e *Engine) (Facts, error) {
	if k.path != "" {
		return k.facts, nil
	}
	path, version, nft, err := netfilter.Find(ctx, cmp.Or(e.Command, netfilter.Program(e.IPv6)))
	if err != nil {
		return Facts{}, err
	}
	facts := Facts{Version: version}
	for _, with := range []Facts{{RandomFully: true, BPF: true}, {RandomFully: true}, {BPF: true}, {}} {
		facts.RandomFully, facts.BPF = with.RandomFully, with.BPF
		if err = try(ctx, path, nft, e, facts); err == nil || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return Facts{}, fmt.Errorf("try the rules of Services: %w", err)
	}
	k.path, k.nft, k.facts = path, nft, facts
	return facts, nil
}

// try has the kernel take one of each kind of rule, in chains that nothing leads to,
// and removes them.
func try(ctx context.Context, path string, nft bool, e *Engine, facts Facts) error {
	s := shape{ipv6: e.IPv6, mark: e.mark(), randomFully: facts.RandomFully, bpf: facts.BPF, local: e.pods(lb.Node{})}
	text, remove := s.trial()
	err := netfilter.Restore(ctx, path+"-restore", nft, e.IPv6, text)
	// One table may have been written and the other not.
	if err2 := netfilter.Restore(ctx, path+"-restore", nft, e.IPv6, remove); err == nil {
		err = err2
	}
	return err
}

func cleanup(ctx context.Context) error {
	if err := netfilter.Privileged(); err != nil {
		return err
	}
	var errs []error
	for _, ipv6 := range []bool{false, true} {
		errs = append(errs, netfilter.Unseen(ipv6))
		for _, command := range netfilter.Backends(ipv6) {
			errs = append(errs, cleanupBackend(ctx, command, ipv6))
		}
		for _, t := range tables {
			errs = append(errs, netfilter.RemoveMarkedTable(netfilter.Family(ipv6), t.name))
		}
	}
	return errors.Join(errs...)
}

// cleanupBackend removes our chains, and all that leads to them, from one backend of
// iptables.
func cleanupBackend(ctx context.Context, command string, ipv6 bool) error {
	nft := !strings.HasSuffix(command, "-legacy")
	if nft {
		// iptables-nft-save fails on what it does not understand in a table, so that it is
		// asked only if there is something to remove.
		there := false
		for _, t := range tables {
			chains, err := netfilter.NFTChains(netfilter.Family(ipv6), t.name)
			if err != nil {
				return err
			}
			there = there || slices.ContainsFunc(chains, func(c netfilter.NFTChain) bool { return ours(t.name, c.Name) })
		}
		if !there {
			return nil
		}
	}
	save, err := netfilter.SavedBy(ctx, command+"-save")
	if err != nil {
		return err
	}
	text := netfilter.Undo(save, ours)
	if text == nil {
		return nil
	}
	return netfilter.Restore(ctx, command+"-restore", nft, ipv6, text)
}

// sortedPlaces returns places in an order that is always the same.
func sortedPlaces[V any](m map[netfilter.Place]V) []netfilter.Place {
	return slices.SortedFunc(maps.Keys(m), func(a, b netfilter.Place) int {
		return strings.Compare(a.Table+" "+a.Chain, b.Table+" "+b.Chain)
	})
}
