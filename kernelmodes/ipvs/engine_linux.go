package ipvs

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/lb"
)

// kernel is what an engine knows of its host, and what it wrote there last.
type kernel struct {
	path   string // of the iptables program; empty until probed
	nft    bool   // its backend is nf_tables
	random bool   // it can masquerade to random ports
	facts  Facts

	used    bool   // there has been something to write
	want    *state // nil before the first Sync
	known   bool   // the kernel has what follows, and what want says it has
	servers map[key]*held
	text    []byte                               // of our rules
	rules   map[netfilter.Place][]netfilter.Rule // as the kernel holds them

	missing map[string]string // schedulers that were refused, and why
	writes  uint64
	flows   flows // that have not been looked at since a change
}

func (e *Engine) fallbacks() []Fallback {
	if e.want == nil {
		return nil
	}
	return e.want.fallbacks()
}

func (e *Engine) stats() Stats {
	s := Stats{Writes: e.writes}
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
	if e.want == nil {
		e.want = newState()
	}
	e.want.services.Fold(d, e.IPv6)
	if !e.used && len(e.want.services.Services()) == 0 {
		if there, err := e.shape().anything(); err != nil || !there {
			return err // a kernel without ip_vs is no error then
		}
	}
	if _, err := e.probe(ctx); err != nil {
		return err
	}
	e.used = true
	t, err := open(e.IPv6, &e.writes)
	if err != nil {
		return err
	}
	defer t.Close()
	defer func() { e.known = e.known && err == nil }()
	if !e.known {
		if err := e.learn(t); err != nil {
			return err
		}
	}
	for {
		e.want.update(e.host(node))
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
		onOurs := e.want != nil && e.want.addresses.inKernel(a)
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
func (e *Engine) learn(t table) error {
	if err := e.applySettings(t); err != nil {
		return err
	}
	if _, _, err := makeInterface(interfaceName); err != nil {
		return err
	}
	have := make(map[string][]netfilter.Member, len(setOrder))
	for _, name := range setOrder {
		set := e.shape().set(name)
		if err := set.Create(); err != nil {
			return err
		}
		list, err := set.Read()
		if err != nil {
			return err
		}
		have[name] = list
	}
	ours := ourKeys(have)
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
	e.want.found(have, onOurs, servers)
	e.servers, e.text = servers, nil
	e.known = true
	return nil
}

// write brings the kernel from what is known of it to what is requested, where that may
// differ. What serves comes before what leads to it; what is not requested goes in the
// reverse order.
func (e *Engine) write(ctx context.Context, t table) error {
	w := e.want
	if w.committed() && bytes.Equal(e.text, w.rules) {
		return nil
	}
	w.linger(e.servers)
	for _, name := range setOrder {
		if name == setNear {
			continue // before there are virtual servers a mark would lead to nothing
		}
		if err := e.addMembers(name); err != nil {
			return err
		}
	}
	if !bytes.Equal(e.text, w.rules) {
		if err := e.replace(ctx, w.rules); err != nil {
			return err
		}
	}
	near := w.near()
	if err := e.serve(t, near); err != nil {
		return err
	}
	if err := e.addMembers(setNear); err != nil {
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
	if err := e.removeOld(t); err != nil {
		return err
	}
	return e.flows.delete(e.IPv6)
}

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

// takeOver makes virtual servers where a program of this node may have been asked until now.
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
		if m := memberOf(lb.Frontend{Protocol: x.protocol, Addr: x.addr}); !e.want.sets[setDrop].inKernel(m) {
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

// removeOld removes what is no longer requested, as soon as it has no connections.
func (e *Engine) removeOld(t table) error {
	w := e.want
	keep := func(x key) bool { return x.mark == 0 && contains(e.ExcludeCIDRs, x.addr.Addr()) }
	near := w.near()
	// Marks lead to virtual servers that refuse without backends.
	if err := e.deleteMembers(setNear); err != nil {
		return err
	}
	gone, err := t.retire(w.pending, w.servers, e.servers, keep)
	e.flows.note(gone, near)
	if err != nil {
		return err
	}
	w.linger(e.servers)
	if err := e.deleteAddresses(); err != nil {
		return err
	}
	for _, name := range slices.Backward(setOrder) {
		if err := e.deleteMembers(name); err != nil {
			return err
		}
	}
	w.commit(e.servers, keep)
	return nil
}

// addMembers adds what a set lacks.
func (e *Engine) addMembers(name string) error {
	set := e.want.sets[name]
	missing := set.missing()
	sent, err := e.shape().set(name).Add(missing)
	e.writes += sent
	if err == nil {
		set.wrote(missing, true)
	}
	return err
}

// deleteMembers deletes from a set, which lacks nothing, what is not to be there.
func (e *Engine) deleteMembers(name string) error {
	set := e.want.sets[name]
	list := set.surplus()
	if name == setNear {
		list = obsolete(list, set.kept())
	}
	sent, err := e.shape().set(name).Delete(list)
	e.writes += sent
	if err == nil {
		set.commit()
	}
	return err
}

// addAddresses gives our interface the addresses that it lacks.
func (e *Engine) addAddresses() error {
	missing := e.want.addresses.missing()
	if len(missing) == 0 {
		return nil
	}
	source, err := sourceOf(e.want.node)
	if err != nil {
		return err
	}
	return e.eachAddress(missing, true, func(link netlink.Link, ip netip.Addr) error { return addAddress(link, ip, source) })
}

// deleteAddresses takes from our interface, which lacks none, those that it is not to have.
func (e *Engine) deleteAddresses() error {
	return e.eachAddress(e.want.addresses.surplus(), false, deleteAddress)
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
	}
	e.want.addresses.wrote(list, there)
	return nil
}

// replace writes rules in the place of those in our chains, puts the jumps to them
// where they belong, and keeps how the kernel holds it all.
func (e *Engine) replace(ctx context.Context, rules []byte) error {
	s := e.shape()
	e.writes++
	if err := netfilter.Restore(ctx, e.path+"-restore", e.nft, s.ipv6, rules); err != nil {
		return err
	}
	now, err := e.look(ctx)
	if err != nil {
		return err
	}
	if moves := s.misplaced(now); len(moves) > 0 {
		if err := netfilter.Restore(ctx, e.path+"-restore", e.nft, s.ipv6, moves); err != nil {
			return err
		}
		if now, err = e.look(ctx); err != nil {
			return err
		}
	}
	if err := s.check(now, rules); err != nil {
		return err
	}
	e.text, e.rules = rules, now
	return nil
}

func (e *Engine) look(ctx context.Context) (map[netfilter.Place][]netfilter.Rule, error) {
	now := e.shape().places()
	return now, netfilter.Look(ctx, e.path, e.nft, e.IPv6, now)
}

// sibling reports whether a chain is Sluice's, ours or another's.
func sibling(chain string) bool { return strings.HasPrefix(chain, "SLUICE-") }
