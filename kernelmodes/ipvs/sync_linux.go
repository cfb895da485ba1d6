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
	want    *state // by the last Sync; nil before the first
	known   bool   // what follows, and what want says is there, is there
	servers map[key]*held
	text    []byte                               // of our rules
	rules   map[netfilter.Place][]netfilter.Rule // as the kernel holds them

	missing map[string]string // schedulers that were refused, and why
	writes  uint64
	flows   flows // that have not been looked at since a change
}

func (k *kernel) fallbacks() []Fallback {
	if k.want == nil {
		return nil
	}
	return k.want.fallbacks()
}

func (k *kernel) stats() Stats {
	s := Stats{Writes: k.writes}
	for _, h := range k.servers {
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

func (k *kernel) sync(ctx context.Context, e *Engine, services []lb.Service, node lb.Node) (err error) {
	shape := e.shape()
	if !k.used && !slices.ContainsFunc(services, func(s lb.Service) bool { return s.IPv6 == e.IPv6 }) {
		if there, err := shape.anything(); err != nil || !there {
			return err // a kernel without ip_vs is none of our business then
		}
	}
	if _, err := k.probe(ctx, e); err != nil {
		return err
	}
	k.used = true
	t, err := open(e.IPv6, &k.writes)
	if err != nil {
		return err
	}
	defer t.Close()
	defer func() { k.known = k.known && err == nil }()
	if !k.known {
		if err := k.learn(ctx, e, t); err != nil {
			return err
		}
	}
	for {
		k.want.update(k.host(e, node), services)
		err := k.write(ctx, e, t)
		var lacks noScheduler
		if !errors.As(err, &lacks) || k.missing[lacks.name] != "" || lacks.name == defaultScheduler {
			return err
		}
		missing := map[string]string{lacks.name: lacks.Error()}
		maps.Copy(missing, k.missing) // the host of before has the other
		k.missing = missing
	}
}

func (e *Engine) shape() shape { return shape{ipv6: e.IPv6, prefix: chainPrefix} }

// host returns what rendering depends on.
func (k *kernel) host(e *Engine, node lb.Node) host {
	h := host{
		ipv6: e.IPv6, scheduler: e.Scheduler, missing: k.missing,
		masquerade: masquerade{
			mark: cmp.Or(e.MasqueradeMark, 1<<14), all: e.MasqueradeAll, randomFully: k.random,
			bridge: e.LocalBridge, interfaces: e.LocalInterfaces,
		},
		own: make(map[netip.Addr]bool, len(node.Addresses)),
	}
	ours := func(p netip.Prefix) bool { return p.IsValid() && p.Addr().Is6() == e.IPv6 }
	for _, p := range node.PodCIDRs {
		if ours(p) {
			h.pods = append(h.pods, p.Masked())
		}
	}
	for _, p := range e.LocalCIDRs {
		if ours(p) {
			h.masquerade.cidrs = append(h.masquerade.cidrs, p.Masked())
		}
	}
	if len(e.LocalCIDRs) == 0 && e.LocalBridge == "" && e.LocalInterfaces == "" {
		h.masquerade.cidrs = h.pods
	}
	for _, a := range node.Addresses {
		a = a.Unmap()
		if a.Is6() == e.IPv6 && !a.IsLoopback() && !a.IsLinkLocalUnicast() && !k.want.addresses.all[a].there && !h.own[a] {
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

// learn reads what an earlier process has left, or others have changed.
func (k *kernel) learn(ctx context.Context, e *Engine, t table) error {
	if err := e.applySettings(t); err != nil {
		return err
	}
	if _, _, err := makeInterface(interfaceName); err != nil {
		return err
	}
	if k.want == nil {
		k.want = newState()
	}
	have := make(map[string][]netfilterMember, len(setOrder))
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
	for x := range k.servers {
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
	k.want.found(have, onOurs, servers)
	k.servers, k.text = servers, nil
	k.known = true
	return nil
}

// write brings the kernel from what is known of it to what is wanted, where that may
// differ. What serves comes before what leads to it; what is not wanted goes in the
// reverse order.
func (k *kernel) write(ctx context.Context, e *Engine, t table) error {
	w := k.want
	if w.settled() && bytes.Equal(k.text, w.rules) {
		return nil
	}
	w.linger(k.servers)
	for _, name := range setOrder {
		if name == setNear {
			continue // before there are virtual servers a mark would lead to nothing
		}
		if err := k.addMembers(e.shape(), name); err != nil {
			return err
		}
	}
	if !bytes.Equal(k.text, w.rules) {
		if err := k.replace(ctx, e.shape(), w.rules); err != nil {
			return err
		}
	}
	near := w.near()
	made, err := k.takeUDP(e, t)
	if err == nil {
		var more []change
		more, err = t.serve(w.pending, w.servers, k.servers, w.hosted, func(x key, start func() error) error { return k.begin(e, x, start) })
		made = append(made, more...)
	}
	k.flows.note(made, near)
	if err != nil {
		return err
	}
	if err := k.addMembers(e.shape(), setNear); err != nil {
		return err
	}
	if err := k.addAddresses(); err != nil {
		return err
	}
	// Those who ask virtual servers of UDP that are about to go begin anew at whoever has
	// them now: without a virtual server their entries would lead to nobody.
	for x := range w.pending {
		if _, wanted := w.servers[x]; !wanted && k.servers[x] != nil && k.servers[x].udp {
			for a := range k.servers[x].weights {
				k.flows.note([]change{{x, a}}, near)
			}
		}
	}
	if err := k.flows.forget(e.IPv6); err != nil {
		return err
	}
	if err := k.removeOld(e, t); err != nil {
		return err
	}
	return k.flows.forget(e.IPv6)
}

// begin runs start, which makes a virtual server and its first backend where a program of
// this node may have been asked until now: nobody asks meanwhile.
func (k *kernel) begin(e *Engine, x key, start func() error) error {
	resume, err := k.hush(e, []key{x})
	if err != nil {
		return err
	}
	return errors.Join(start(), resume())
}

// takeUDP makes the virtual servers of UDP node ports that are to get one, after it has
// forgotten the flows that there are, which sockets of this node have. Else ipvs would get
// datagrams of flows that it cannot masquerade any more, and the answers would leave by
// other ports. Nobody begins a flow meanwhile: what is lost is asked again, as UDP may be
// lost.
func (k *kernel) takeUDP(e *Engine, t table) (made []change, err error) {
	fresh := make(map[key]struct{})
	for x := range k.want.pending {
		if k.want.servers[x].udp && k.servers[x] == nil && k.want.hosted(x) {
			fresh[x] = struct{}{}
			k.flows.add(x.addr, netip.AddrPort{})
		}
	}
	if len(fresh) == 0 {
		return nil, nil
	}
	resume, err := k.hush(e, slices.Collect(maps.Keys(fresh)))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, resume()) }()
	if err := k.flows.forget(e.IPv6); err != nil {
		return nil, err
	}
	return t.serve(fresh, k.want.servers, k.servers, func(key) bool { return false }, nil)
}

// hush has nobody begin a flow to some virtual servers until resume is called.
func (k *kernel) hush(e *Engine, servers []key) (resume func() error, err error) {
	var fresh []netfilterMember
	for _, x := range servers {
		if m := memberOf(lb.Frontend{Protocol: x.protocol, Addr: x.addr}); !k.want.sets[setDrop].all[m].there {
			fresh = append(fresh, m)
		}
	}
	set := e.shape().set(setDrop)
	sent, err := set.Add(fresh)
	k.writes += sent
	resume = func() error {
		sent, err := set.Delete(fresh)
		k.writes += sent
		return err
	}
	if err != nil {
		return nil, errors.Join(err, resume())
	}
	return resume, nil
}

// removeOld removes what is not wanted any more, as soon as nobody uses it.
func (k *kernel) removeOld(e *Engine, t table) error {
	w := k.want
	keep := func(x key) bool {
		return x.mark == 0 && slices.ContainsFunc(e.ExcludeCIDRs, func(p netip.Prefix) bool { return p.Contains(x.addr.Addr()) })
	}
	near := w.near()
	// Marks lead to virtual servers that refuse without backends.
	if err := k.deleteMembers(e.shape(), setNear); err != nil {
		return err
	}
	gone, err := t.retire(w.pending, w.servers, k.servers, keep)
	k.flows.note(gone, near)
	if err != nil {
		return err
	}
	w.linger(k.servers)
	if err := k.deleteAddresses(); err != nil {
		return err
	}
	for _, name := range slices.Backward(setOrder) {
		if err := k.deleteMembers(e.shape(), name); err != nil {
			return err
		}
	}
	w.settle(k.servers, keep)
	return nil
}

// addMembers adds what a set lacks.
func (k *kernel) addMembers(s shape, name string) error {
	set := k.want.sets[name]
	lacking := set.lacking()
	sent, err := s.set(name).Add(lacking)
	k.writes += sent
	if err != nil {
		return err
	}
	for _, m := range lacking {
		set.is(m, true)
	}
	return nil
}

// deleteMembers deletes from a set, which lacks nothing, what is not to be there.
func (k *kernel) deleteMembers(s shape, name string) error {
	set := k.want.sets[name]
	surplus := set.surplus()
	list := surplus
	if name == setNear {
		list = obsolete(surplus, set.stays())
	}
	sent, err := s.set(name).Delete(list)
	k.writes += sent
	if err != nil {
		return err
	}
	for _, m := range surplus {
		set.is(m, false)
	}
	set.settle()
	return nil
}

// addAddresses gives our interface the addresses that it lacks.
func (k *kernel) addAddresses() error {
	lacking := k.want.addresses.lacking()
	if len(lacking) == 0 {
		return nil
	}
	link, err := netlink.LinkByName(interfaceName)
	if err != nil {
		return fmt.Errorf("find interface %s: %w", interfaceName, err)
	}
	source, err := sourceOf(k.want.node)
	if err != nil {
		return err
	}
	for _, ip := range lacking {
		k.writes++
		if err := addAddress(link, ip, source); err != nil {
			return err
		}
		k.want.addresses.is(ip, true)
	}
	return nil
}

// deleteAddresses takes from our interface, which lacks none, those that it is not to have.
func (k *kernel) deleteAddresses() error {
	surplus := k.want.addresses.surplus()
	if len(surplus) == 0 {
		return nil
	}
	link, err := netlink.LinkByName(interfaceName)
	if err != nil {
		return fmt.Errorf("find interface %s: %w", interfaceName, err)
	}
	for _, ip := range surplus {
		k.writes++
		if err := deleteAddress(link, ip); err != nil {
			return err
		}
		k.want.addresses.is(ip, false)
	}
	return nil
}

// replace writes rules in the place of those in our chains, puts the jumps to them
// where they belong, and remembers how the kernel holds it all.
func (k *kernel) replace(ctx context.Context, s shape, rules []byte) error {
	k.writes++
	if err := netfilter.Restore(ctx, k.path+"-restore", k.nft, s.ipv6, rules); err != nil {
		return err
	}
	now, err := k.look(ctx, s)
	if err != nil {
		return err
	}
	if moves := s.misplaced(now); len(moves) > 0 {
		if err := netfilter.Restore(ctx, k.path+"-restore", k.nft, s.ipv6, moves); err != nil {
			return err
		}
		if now, err = k.look(ctx, s); err != nil {
			return err
		}
	}
	if err := s.check(now, rules); err != nil {
		return err
	}
	k.text, k.rules = rules, now
	return nil
}

func (k *kernel) look(ctx context.Context, s shape) (map[netfilter.Place][]netfilter.Rule, error) {
	now := s.places()
	return now, netfilter.Look(ctx, k.path, k.nft, s.ipv6, now)
}

// sibling reports whether a chain is Sluice's, ours or another's.
func sibling(chain string) bool { return strings.HasPrefix(chain, "SLUICE-") }
