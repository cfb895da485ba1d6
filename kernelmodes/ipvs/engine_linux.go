package ipvs

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"syscall"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/internal/netfilter/nfnl"
	"github.com/sluice-lb/sluice/kernelmodes"
	"github.com/sluice-lb/sluice/lb"
)

// kernel is what an engine knows of its host, and what it wrote there last.
type kernel struct {
	program *netfilter.IPTables // nil until probed
	random  bool                // it can masquerade to random ports

	want    *state   // nil until there has been something to write
	missing []string // schedulers that the kernel has refused
	flows   untranslated

	writes   uint64 // of virtual servers and addresses
	counters netfilter.Counters
}

func (e *Engine) fallbacks() []Fallback {
	if e.want == nil {
		return nil
	}
	return e.want.fallbacks()
}

func (e *Engine) stats() Stats {
	s := Stats{Writes: e.writes + e.counters.SetOps.Load() + e.counters.Restores.Load()}
	if e.want == nil {
		return s
	}
	for _, h := range e.want.have {
		s.VirtualServers++
		for _, w := range h.weights {
			s.RealServers++
			if w == 0 {
				s.Draining++
			}
		}
	}
	return s
}

func (e *Engine) sync(ctx context.Context, d *lb.Delta, node lb.Node) (err error) {
	if e.want == nil && len(lb.Unwritten(d, e.IPv6, nil, (*unit).of)) == 0 {
		if _, there, err := e.shape().members(setServers); err != nil || !there {
			return err // a kernel without ip_vs is no error then
		}
	}
	if err := e.probe(ctx); err != nil {
		return err
	}
	if e.want == nil {
		e.want = newState(e.program, e.shape(), e.Lease, &e.counters)
	}
	t := &table{ipv6: e.IPv6, writes: &e.writes}
	defer t.Close()
	for {
		if !e.want.rules.Known() {
			if err := e.learn(ctx, t); err != nil {
				return err
			}
		}
		e.want.update(e.host(node), d)
		err := e.write(ctx, t)
		var lacks noScheduler
		if !errors.As(err, &lacks) || slices.Contains(e.missing, lacks.name) || lacks.name == defaultScheduler {
			return err
		}
		e.missing = append(e.missing, lacks.name)
	}
}

func (e *Engine) leftover() (bool, error) {
	list, _, err := e.shape().members(setServers)
	return len(list) > 0, err
}

func (e *Engine) shape() shape { return shape{ipv6: e.IPv6, prefix: chainPrefix} }

// host returns what rendering depends on.
func (e *Engine) host(node lb.Node) host {
	h := host{
		ipv6: e.IPv6, scheduler: e.Scheduler, missing: e.missing, exclude: e.ExcludeCIDRs,
		masquerade: masquerade{
			mark: e.Mark(), all: e.MasqueradeAll, randomFully: e.random,
			interfaces: e.Interfaces(), pods: e.Pods(e.IPv6, node),
		},
		pods: kernelmodes.OfFamily(node.PodCIDRs, e.IPv6),
	}
	seen := make(map[netip.Addr]bool, len(node.Addresses))
	for _, a := range node.Addresses {
		if a = a.Unmap(); a.Is6() == e.IPv6 && !a.IsLoopback() && !a.IsLinkLocalUnicast() && !seen[a] {
			seen[a] = true
			h.node = append(h.node, a)
		}
	}
	return h
}

// learn reads what an earlier process has left, or other programs have changed.
func (e *Engine) learn(ctx context.Context, t *table) error {
	w := e.want
	w.rules.Forget()
	err := t.connect()
	if err == nil {
		err = errors.Join(e.applySettings(t), w.rules.Learn(ctx))
	}
	if err != nil {
		return err
	}
	ours := ourKeys(inKernel(w.set(setServers)), inKernel(w.set(setNumbers)))
	for x := range w.have {
		ours[x] = true // the sets may have been emptied
	}
	servers, err := t.read(func(x key) bool { return ours[x] })
	if err != nil {
		return err
	}
	here, err := routed(e.IPv6)
	if err == nil {
		w.found(here, servers)
	}
	return err
}

func (e *Engine) verify(ctx context.Context) (bool, error) {
	if e.want == nil {
		return true, nil
	}
	if !e.want.rules.Known() {
		return false, nil
	}
	t, err := open(e.IPv6, &e.writes)
	if err != nil {
		return false, err
	}
	defer t.Close()
	intact, err := e.intact(ctx, t)
	if err != nil || !intact {
		e.want.rules.Forget()
		return false, err
	}
	if len(e.want.pending) > 0 { // something drains
		err = e.write(ctx, t)
	}
	return true, err
}

// intact reports whether the kernel holds what was written.
func (e *Engine) intact(ctx context.Context, t *table) (bool, error) {
	w := e.want
	if intact, err := w.rules.Verify(ctx); err != nil || !intact {
		return false, err
	}
	here, err := routed(e.IPv6)
	if err != nil || !w.addresses.Match(here) {
		return false, err
	}
	have, err := t.read(func(x key) bool { return w.have[x] != nil })
	return err == nil && maps.EqualFunc(have, w.have, func(a, b *held) bool {
		return a.same(b.server) && maps.Equal(a.weights, b.weights)
	}), err
}

// members reads a set of an earlier process of this family, and reports whether it is there:
// each process begins with making the sets.
func (s shape) members(name string) (list []netfilter.Member, there bool, err error) {
	list, err = s.set(name).Read()
	if errors.Is(err, syscall.ENOENT) || nfnl.NoSubsystem(err) {
		return nil, false, nil
	}
	return list, err == nil, err
}

func cleanup(ctx context.Context) error {
	return netfilter.EachFamily(func(ipv6 bool) error { return cleanupFamily(ctx, ipv6) })
}

// cleanupFamily removes virtual servers first: the sets name them.
func cleanupFamily(ctx context.Context, ipv6 bool) error {
	err := removeServers(ipv6)
	for _, prefix := range []string{chainPrefix, probePrefix} {
		l := shape{ipv6: ipv6, prefix: prefix}.layout()
		if err != nil {
			l.Sets, l.Inner = nil, nil // they are needed to try again
		}
		err = errors.Join(err, netfilter.Remove(ctx, l, nil))
	}
	here, err2 := routed(ipv6)
	errs := []error{err, err2}
	for _, ip := range here {
		errs = append(errs, deleteRoute(ip))
	}
	return errors.Join(errs...)
}

// removeOthers removes virtual servers that no engine has made. A set names a virtual server
// before it is there, so that one which an engine makes meanwhile is not taken for another's.
func removeOthers(ipv6 bool, excluded []netip.Prefix) (n int, err error) {
	t, err := open(ipv6, new(uint64))
	if errors.Is(err, errors.ErrUnsupported) {
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	defer t.Close()
	have, err := t.read(func(x key) bool { return x.mark == 0 && !netfilter.Contains(excluded, x.Addr.Addr()) })
	if err != nil {
		return 0, err
	}
	s := shape{ipv6: ipv6, prefix: chainPrefix}
	servers, _, err1 := s.members(setServers)
	numbers, _, err2 := s.members(setNumbers)
	if err := errors.Join(err1, err2); err != nil {
		return 0, err
	}
	ours := ourKeys(servers, numbers)
	for x := range have {
		if !ours[x] {
			t.remove(x, func() { n++ })
		}
	}
	err = t.flush() // counts
	return n, err
}

// removeServers removes the virtual servers that our sets name.
func removeServers(ipv6 bool) error {
	s := shape{ipv6: ipv6, prefix: chainPrefix}
	servers, _, err1 := s.members(setServers)
	numbers, _, err2 := s.members(setNumbers)
	near, _, err3 := s.members(setNear)
	ours := ourKeys(servers, numbers)
	if err := errors.Join(err1, err2, err3); err != nil || len(ours) == 0 {
		return err
	}
	t, err := open(ipv6, new(uint64))
	if err != nil {
		return err
	}
	defer t.Close()
	f := untranslated{leads: leadTo(near)}
	have, err := t.read(func(x key) bool { return ours[x] })
	for x := range have {
		t.remove(x, func() { f.note(x) })
	}
	return errors.Join(err, t.flush(), f.delete(ipv6))
}
