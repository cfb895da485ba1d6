package ipvs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/lb"
)

// kernel is what an engine knows of its host, and what it wrote there last.
type kernel struct {
	program *netfilter.IPTables // nil until probed
	random  bool                // it can masquerade to random ports
	facts   Facts

	services lb.Mirror
	want     *state // nil until there has been something to write
	servers  map[key]*held
	missing  map[string]string // schedulers that were refused, and why
	flows    flows             // that have not been looked at since a change

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
	for _, h := range e.servers {
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
	e.services.Fold(d, e.IPv6)
	if e.want == nil && len(e.services.Services()) == 0 {
		if there, err := e.shape().anything(); err != nil || !there {
			return err // a kernel without ip_vs is no error then
		}
	}
	if _, err := e.probe(ctx); err != nil {
		return err
	}
	if e.want == nil {
		l := e.shape().layout()
		l.Counters = &e.counters
		e.want = newState(netfilter.NewRuleset(e.program, l), e.shape())
	}
	t, err := open(e.IPv6, &e.writes)
	if err != nil {
		return err
	}
	defer t.Close()
	for {
		if !e.want.rules.Known() {
			if err := e.learn(ctx, t); err != nil {
				return err
			}
		}
		e.want.update(e.host(node), e.services.Services(), e.services.Changed())
		err := e.write(ctx, t)
		var lacks noScheduler
		if !errors.As(err, &lacks) || e.missing[lacks.name] != "" || lacks.name == defaultScheduler {
			return err
		}
		missing := map[string]string{lacks.name: lacks.Error()}
		maps.Copy(missing, e.missing) // the host that was rendered for has the other
		e.missing = missing
	}
}

func (e *Engine) shape() shape { return shape{ipv6: e.IPv6, prefix: chainPrefix} }

// host returns what rendering depends on.
func (e *Engine) host(node lb.Node) host {
	h := host{
		ipv6: e.IPv6, scheduler: e.Scheduler, missing: e.missing,
		masquerade: masquerade{
			mark: cmp.Or(e.MasqueradeMark, 1<<14), all: e.MasqueradeAll, randomFully: e.random,
			cidrs: e.family(e.LocalCIDRs), bridge: e.LocalBridge, interfaces: e.LocalInterfaces,
		},
		pods: e.family(node.PodCIDRs),
		own:  make(map[netip.Addr]bool, len(node.Addresses)),
	}
	if len(e.LocalCIDRs) == 0 && e.LocalBridge == "" && e.LocalInterfaces == "" {
		h.masquerade.cidrs = h.pods
	}
	for _, a := range node.Addresses {
		a = a.Unmap()
		onOurs := e.want != nil && e.want.addresses.Present(a)
		if a.Is6() == e.IPv6 && !a.IsLoopback() && !a.IsLinkLocalUnicast() && !onOurs && !h.own[a] {
			h.own[a] = true
			h.node = append(h.node, a)
		}
	}
	h.nodePorts = h.node
	if len(e.NodePortAddresses) > 0 {
		h.nodePorts = nil
		for _, a := range e.NodePortAddresses {
			if a = a.Unmap(); !slices.Contains(h.nodePorts, a) {
				h.nodePorts = append(h.nodePorts, a)
				h.own[a] = true
			}
		}
	}
	return h
}

// family returns the prefixes of the engine's family.
func (e *Engine) family(list []netip.Prefix) (out []netip.Prefix) {
	for _, p := range list {
		if p.IsValid() && p.Addr().Is6() == e.IPv6 {
			out = append(out, p.Masked())
		}
	}
	return out
}

// learn reads what an earlier process has left, or other programs have changed.
func (e *Engine) learn(ctx context.Context, t table) error {
	if err := e.applySettings(t); err != nil {
		return err
	}
	if _, _, err := makeInterface(interfaceName); err != nil {
		return err
	}
	e.want.rules.Forget()
	if err := e.want.rules.Learn(ctx); err != nil {
		return err
	}
	ours := ourKeys(inKernel(e.want.set(setServers)), inKernel(e.want.set(setNumbers)))
	for x := range e.servers {
		ours[x] = true // the sets may have been emptied
	}
	servers, err := t.read(func(x key) bool { return ours[x] })
	if err != nil {
		return err
	}
	onOurs, _, err := onInterface(e.IPv6)
	if err != nil {
		return err
	}
	e.want.found(onOurs, servers)
	e.servers = servers
	return nil
}

// write brings the kernel from what is known of it to what is requested, where that may
// differ. What serves comes before what leads to it; what is not requested goes in the
// reverse order.
func (e *Engine) write(ctx context.Context, t table) error {
	e.want.linger(e.servers)
	err := e.want.rules.Write(ctx, func() error { return e.writeServers(t) })
	if err == nil {
		e.want.commit(e.servers, e.keep)
		if err = e.flows.delete(e.IPv6); err != nil {
			e.want.rules.Forget()
		}
	}
	return err
}

// writeServers writes virtual servers and addresses, and which marks lead to them.
func (e *Engine) writeServers(t table) error {
	w, marks := e.want, e.shape().set(setNear)
	near := w.near()
	if err := e.serve(t, near); err != nil {
		return err
	}
	if err := w.rules.Grow(marks); err != nil {
		return err
	}
	if err := e.addAddresses(); err != nil {
		return err
	}
	// Clients of virtual servers of UDP that are about to go begin anew with what serves
	// them now: without a virtual server their entries would lead nowhere.
	for x := range w.pending {
		if _, requested := w.servers[x]; !requested && e.servers[x] != nil && e.servers[x].udp {
			for a := range e.servers[x].weights {
				e.flows.note([]change{{x, a}}, near)
			}
		}
	}
	if err := e.flows.delete(e.IPv6); err != nil {
		return err
	}
	near = w.near()
	// Marks lead to virtual servers that refuse without backends.
	if err := w.rules.Shrink(marks); err != nil {
		return err
	}
	gone, err := t.retire(w.pending, w.servers, e.servers, e.keep)
	e.flows.note(gone, near)
	if err != nil {
		return err
	}
	w.linger(e.servers)
	return e.deleteAddresses()
}

// keep reports whether a virtual server is never removed.
func (e *Engine) keep(x key) bool { return x.mark == 0 && contains(e.ExcludeCIDRs, x.addr.Addr()) }

// serve makes and changes virtual servers.
func (e *Engine) serve(t table, near map[key][]netip.AddrPort) error {
	hosted, others := e.want.fresh(e.servers)
	var errs []error
	for _, group := range hosted {
		errs = append(errs, e.takeOver(t, group))
	}
	errs = append(errs, t.start(others, e.want.servers, e.servers), t.adjust(e.want.pending, e.want.servers, e.servers))
	for _, x := range slices.Concat(append(hosted, others)...) {
		if e.servers[x] != nil {
			e.flows.note([]change{{key: x}}, near)
		}
	}
	return errors.Join(errs...)
}

// takeOver makes virtual servers where a program of this node may have served until now.
// No new flow begins meanwhile, and the flows of UDP that sockets of this node have are deleted
// before: of those ipvs would get datagrams that it cannot masquerade any more, and the answers
// would leave by other ports.
func (e *Engine) takeOver(t table, servers []key) (err error) {
	for _, x := range servers {
		if x.protocol == lb.UDP {
			e.flows.add(x.addr, netip.AddrPort{})
		}
	}
	release, err := e.blockNewFlows(servers)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	if servers[0].protocol == lb.UDP {
		if err := e.flows.delete(e.IPv6); err != nil {
			return err
		}
	}
	return t.start(servers, e.want.servers, e.servers)
}

// blockNewFlows drops the first packets of flows to some virtual servers until release is
// called.
func (e *Engine) blockNewFlows(servers []key) (release func() error, err error) {
	var block []netfilter.Member
	for _, x := range servers {
		if m := memberOf(lb.Frontend{Protocol: x.protocol, Addr: x.addr}); !e.want.set(setDrop).Present(m) {
			block = append(block, m)
		}
	}
	set := e.shape().set(setDrop)
	sent, err := set.Add(block)
	e.writes += sent
	release = func() error {
		sent, err := set.Delete(block)
		e.writes += sent
		return err
	}
	if err != nil {
		return nil, errors.Join(err, release())
	}
	return release, nil
}

// addAddresses gives our interface the addresses that it lacks.
func (e *Engine) addAddresses() error {
	missing := e.want.addresses.Missing()
	if len(missing) == 0 {
		return nil
	}
	source, err := sourceOf(e.want.node)
	if err != nil {
		return err
	}
	add := func(link netlink.Link, ip netip.Addr) error { return addAddress(link, ip, source) }
	return e.eachAddress(missing, true, add)
}

// deleteAddresses takes from our interface, which lacks none, those that it is not to have.
func (e *Engine) deleteAddresses() error {
	return e.eachAddress(e.want.addresses.Surplus(), false, deleteAddress)
}

// eachAddress adds or deletes addresses.
func (e *Engine) eachAddress(list []netip.Addr, there bool, do func(netlink.Link, netip.Addr) error) error {
	if len(list) == 0 {
		return nil
	}
	link, err := netlink.LinkByName(interfaceName)
	if err != nil {
		return fmt.Errorf("find interface %s: %w", interfaceName, err)
	}
	for _, ip := range list {
		e.writes++
		if err := do(link, ip); err != nil {
			return err
		}
		e.want.addresses.SetPresent(ip, there)
	}
	return nil
}
