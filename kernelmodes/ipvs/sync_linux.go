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
	wanted  *state // by the last Sync; nil before the first
	known   bool   // what follows is what is there
	servers map[key]*held
	sets    sets
	onOurs  map[netip.Addr]bool                  // addresses of our interface
	text    []byte                               // of our rules
	rules   map[netfilter.Place][]netfilter.Rule // as the kernel holds them

	missing map[string]string // schedulers that were refused, and why
	numbers map[lb.ID]uint16  // of Services, also before an error
	writes  uint64
	flows   flows // that have not been looked at since a change
}

func (k *kernel) fallbacks() []Fallback {
	if k.wanted == nil {
		return nil
	}
	return k.wanted.fallbacks
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
		want := render(k.host(e, node), services)
		k.numbers = want.numbers
		err := k.write(ctx, e, t, want)
		var lacks noScheduler
		if !errors.As(err, &lacks) || k.missing[lacks.name] != "" || lacks.name == defaultScheduler {
			return err
		}
		if k.missing == nil {
			k.missing = make(map[string]string)
		}
		k.missing[lacks.name] = lacks.Error()
	}
}

func (e *Engine) shape() shape { return shape{ipv6: e.IPv6, prefix: chainPrefix} }

// host returns what rendering depends on.
func (k *kernel) host(e *Engine, node lb.Node) host {
	h := host{
		ipv6: e.IPv6, scheduler: e.Scheduler, missing: k.missing, before: k.numbers,
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
		if a.Is6() == e.IPv6 && !a.IsLoopback() && !a.IsLinkLocalUnicast() && !k.onOurs[a] && !h.own[a] {
			h.own[a] = true
			h.node = append(h.node, a)
		}
	}
	h.nodePorts = h.node
	if len(e.NodePortAddresses) > 0 {
		h.nodePorts = nil
		for _, a := range e.NodePortAddresses {
			h.nodePorts = append(h.nodePorts, a.Unmap())
			h.own[a.Unmap()] = true
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
	have := make(sets)
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
	if k.onOurs, _, err = onInterface(e.IPv6); err != nil {
		return err
	}
	k.sets, k.servers, k.text = have, servers, nil
	k.known = true
	return nil
}

// write brings the kernel from what is known of it to what is wanted. What serves comes
// before what leads to it; what is not wanted goes in the reverse order.
func (k *kernel) write(ctx context.Context, e *Engine, t table, want *state) error {
	k.wanted = want
	sets, addresses := want.with(k.servers, k.onOurs)
	if err := k.addMembers(e.shape(), sets, func(name string) bool { return name != setNear }); err != nil {
		return err
	}
	if !bytes.Equal(k.text, want.rules) {
		if err := k.replace(ctx, e.shape(), want.rules); err != nil {
			return err
		}
	}
	made, err := k.takeUDP(e, t, want)
	if err == nil {
		var more []change
		more, err = t.serve(want.servers, k.servers, func(x key, start func() error) error { return k.begin(e, want, x, start) })
		made = append(made, more...)
	}
	k.flows.note(made, sets)
	if err != nil {
		return err
	}
	// Before, a mark would lead to nothing.
	if err := k.addMembers(e.shape(), sets, func(name string) bool { return name == setNear }); err != nil {
		return err
	}
	link, err := netlink.LinkByName(interfaceName)
	if err != nil {
		return fmt.Errorf("find interface %s: %w", interfaceName, err)
	}
	var source netip.Addr
	for _, ip := range addresses {
		if k.onOurs[ip] {
			continue
		}
		if !source.IsValid() {
			if source, err = sourceOf(want.sources); err != nil {
				return err
			}
		}
		k.writes++
		if err := addAddress(link, ip, source); err != nil {
			return err
		}
		k.onOurs[ip] = true
	}
	// Those who ask virtual servers of UDP that are about to go begin anew at whoever has
	// them now: without a virtual server their entries would lead to nobody.
	for x, h := range k.servers {
		if _, wanted := want.servers[x]; !wanted && h.udp {
			for a := range h.weights {
				k.flows.note([]change{{x, a}}, k.sets)
			}
		}
	}
	if err := k.flows.forget(e.IPv6); err != nil {
		return err
	}
	if err := k.removeOld(e, t, link); err != nil {
		return err
	}
	return k.flows.forget(e.IPv6)
}

// hosted reports whether a virtual server is at an address of this node, where a program
// may listen. A mark is for some clients of an address that has a server too.
func (w *state) hosted(x key) bool {
	_, vip := slices.BinarySearchFunc(w.addresses, x.addr.Addr(), netip.Addr.Compare)
	return x.mark == 0 && !vip
}

// begin runs start, which makes a virtual server and its first backend. Where a program
// of this node may have been asked until now, nobody asks meanwhile.
func (k *kernel) begin(e *Engine, want *state, x key, start func() error) error {
	if !want.hosted(x) {
		return start()
	}
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
func (k *kernel) takeUDP(e *Engine, t table, want *state) (made []change, err error) {
	fresh := make(map[key]server)
	for x, s := range want.servers {
		if s.udp && k.servers[x] == nil && want.hosted(x) {
			fresh[x] = s
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
	return t.serve(fresh, k.servers, func(_ key, start func() error) error { return start() })
}

// hush has nobody begin a flow to some virtual servers until resume is called.
func (k *kernel) hush(e *Engine, servers []key) (resume func() error, err error) {
	var fresh []netfilterMember
	for _, x := range servers {
		fresh = append(fresh, memberOf(lb.Frontend{Protocol: x.protocol, Addr: x.addr}))
	}
	slices.SortFunc(fresh, netfilterMember.Compare)
	fresh = netfilter.Minus(fresh, k.sets[setDrop])
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
func (k *kernel) removeOld(e *Engine, t table, link netlink.Link) error {
	keep := func(x key) bool {
		return x.mark == 0 && slices.ContainsFunc(e.ExcludeCIDRs, func(p netip.Prefix) bool { return p.Contains(x.addr.Addr()) })
	}
	// Marks lead to virtual servers that refuse without backends.
	before := maps.Clone(k.sets)
	near := k.wanted.sets[setNear]
	sent, err := e.shape().set(setNear).Delete(obsolete(k.sets[setNear], near))
	k.writes += sent
	if err != nil {
		return err
	}
	k.sets[setNear] = near
	gone, err := t.retire(k.wanted.servers, k.servers, keep)
	k.flows.note(gone, before)
	if err != nil {
		return err
	}
	sets, addresses := k.wanted.with(k.servers, k.onOurs)
	for ip := range k.onOurs {
		if _, found := slices.BinarySearchFunc(addresses, ip, netip.Addr.Compare); !found {
			k.writes++
			if err := deleteAddress(link, ip); err != nil {
				return err
			}
			delete(k.onOurs, ip)
		}
	}
	for _, name := range slices.Backward(setOrder) {
		sent, err := e.shape().set(name).Delete(obsolete(k.sets[name], sets[name]))
		k.writes += sent
		if err != nil {
			return err
		}
		k.sets[name] = sets[name]
	}
	return nil
}

// addMembers adds what some sets lack.
func (k *kernel) addMembers(s shape, want sets, some func(name string) bool) error {
	for _, name := range setOrder {
		lacks := netfilter.Minus(want[name], k.sets[name])
		if !some(name) || len(lacks) == 0 {
			continue
		}
		sent, err := s.set(name).Add(lacks)
		k.writes += sent
		if err != nil {
			return err
		}
		k.sets[name] = append(slices.Clip(k.sets[name]), lacks...)
		slices.SortFunc(k.sets[name], netfilterMember.Compare)
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
