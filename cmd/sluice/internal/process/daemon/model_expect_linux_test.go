package daemon

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
)

// The model says what must come of a world, in the dumbest way there is: for one
// client and one address at a time. It borrows the names of package lb, and nothing
// that decides.

// mBackend is an endpoint of a service port, as seen from our node.
type mBackend struct {
	addr                        netip.AddrPort
	ready, serving, terminating bool
	here                        bool
	node, zone                  lb.Hint
}

// mOwner is an address of a service port.
type mOwner struct {
	id       lb.ID
	addr     netip.AddrPort
	kind     lb.Kind
	local    bool // by the policy that holds for this kind of address
	backends []mBackend
	ranges   []netip.Prefix // who may ask; nil: everybody
	vips     []netip.Addr   // from which the node may ask if it may from its own address
}

// model is what is expected of one world.
type model struct {
	nodeAddresses []netip.Addr   // those of the Node object
	podCIDRs      []netip.Prefix // of our node
	local         []netip.Addr   // what our node's interfaces have

	owners    map[lb.Frontend]*mOwner // node ports have the unspecified address
	services  map[lb.ID][]mBackend
	frontends int               // how many addresses are in force
	health    map[healthKey]int // the local endpoints that each health check tells
}

type healthKey struct {
	ipv6 bool
	port uint16
	name string
}

// expect makes the model of what is in force.
func (w *world) expect(local, nodePorts []netip.Addr) *model {
	m := &model{local: local, owners: map[lb.Frontend]*mOwner{}, services: map[lb.ID][]mBackend{}, health: map[healthKey]int{}}
	zone := ""
	mSlices := map[int][]*mSlice{}
	var served []content
	for _, c := range w.inForce {
		for _, s := range c.slices {
			mSlices[c.n] = append(mSlices[c.n], s)
		}
		if c.node != nil {
			zone, m.nodeAddresses, m.podCIDRs = c.node.zone, c.node.addresses, c.node.podCIDRs
		}
		if c.service != nil && c.service.proxy == "" {
			served = append(served, c)
		}
	}
	var claims []mClaim
	for _, c := range served {
		s := c.service.normal()
		for _, ip := range s.clusterIPs {
			localIPs := map[netip.Addr]bool{}
			for _, p := range s.ports {
				id := lb.ID{Namespace: s.namespace, Name: s.name, Port: p.name, Protocol: protocol(p.protocol), IPv6: ip.Is6()}
				backends := backendsOf(mSlices[c.n], id, zone)
				m.services[id] = backends
				for _, b := range backends {
					if b.here && b.ready {
						localIPs[b.addr.Addr()] = true
					}
				}
				claims = append(claims, claimsOf(s, p, ip, mOwner{id: id, backends: backends})...)
			}
			if s.healthPort != 0 {
				f := lb.Frontend{Protocol: lb.TCP, Addr: netip.AddrPortFrom(unspecified(ip.Is6()), s.healthPort)}
				claims = append(claims, mClaim{f: f, mOwner: mOwner{id: lb.ID{Namespace: s.namespace, Name: s.name}, kind: lb.NodePort}, check: true})
				m.health[healthKey{ip.Is6(), s.healthPort, s.name}] = len(localIPs)
			}
		}
	}
	w.decide(m, claims, nodePorts)
	return m
}

// mClaim is an address that a service port lists.
type mClaim struct {
	f lb.Frontend
	mOwner
	check bool // only health checks are answered there
}

// decide finds the owner of each address: by kind, then who has it, then age. A Service that has a port of the node
// has it at the node's addresses, too.
func (w *world) decide(m *model, claims []mClaim, nodePorts []netip.Addr) {
	slices.SortStableFunc(claims, func(a, b mClaim) int {
		order := []lb.Kind{lb.ClusterIP, lb.NodePort, lb.LoadBalancerIP, lb.ExternalIP}
		had := func(c mClaim) int {
			if name, ok := w.had[c.f]; ok && name == c.id.Service() {
				return 0
			}
			return 1
		}
		return cmp.Or(slices.Index(order, a.kind)-slices.Index(order, b.kind), had(a)-had(b),
			w.came[a.id.Service()]-w.came[b.id.Service()], a.id.Compare(b.id))
	})
	has := map[lb.Frontend]lb.Name{}
	for _, c := range claims {
		ip := c.f.Addr.Addr()
		port := lb.Frontend{Protocol: c.f.Protocol, Addr: netip.AddrPortFrom(unspecified(ip.Is6()), c.f.Addr.Port())}
		if by, ok := has[port]; ok && by != c.id.Service() && slices.Contains(nodePorts, ip) && c.kind != lb.ClusterIP {
			continue
		}
		if _, taken := has[c.f]; taken && m.owners[c.f] != nil || taken && has[c.f] != c.id.Service() {
			continue
		}
		if has[c.f] = c.id.Service(); !c.check {
			m.owners[c.f] = &c.mOwner
			m.frontends++
		}
	}
	w.had = has
}

// claimsOf returns the addresses of one port of a Service in the family of a cluster IP.
func claimsOf(s mService, p mPort, clusterIP netip.Addr, o mOwner) (claims []mClaim) {
	own := func(ip netip.Addr, port uint16, kind lb.Kind, local bool) {
		o := o
		o.addr, o.kind, o.local = netip.AddrPortFrom(ip, port), kind, local
		if kind != lb.LoadBalancerIP {
			o.ranges = nil
		}
		f := lb.Frontend{Protocol: o.id.Protocol, Addr: o.addr}
		listed := slices.ContainsFunc(claims, func(c mClaim) bool { return c.f == f })
		if !listed && ip.Is6() == o.id.IPv6 {
			claims = append(claims, mClaim{f: f, mOwner: o})
		}
	}
	own(clusterIP, p.number, lb.ClusterIP, s.internalLocal)
	for _, in := range s.ingress {
		if in.ip.Is6() == o.id.IPv6 && in.mode != "Proxy" && in.ip.IsValid() {
			o.vips = append(o.vips, in.ip)
		}
	}
	for _, ip := range s.externalIPs {
		kind := lb.ExternalIP
		if slices.Contains(o.vips, ip) {
			kind = lb.LoadBalancerIP // without ranges
		}
		own(ip, p.number, kind, s.externalLocal)
	}
	for _, r := range s.ranges {
		if r.Addr().Is6() == o.id.IPv6 {
			o.ranges = append(o.ranges, r)
		}
	}
	for _, ip := range o.vips {
		own(ip, p.number, lb.LoadBalancerIP, s.externalLocal)
	}
	if p.nodePort != 0 {
		own(unspecified(o.id.IPv6), p.nodePort, lb.NodePort, s.externalLocal)
	}
	return claims
}

// backendsOf returns the endpoints of a service port, in the order of addresses.
func backendsOf(from []*mSlice, id lb.ID, zone string) []mBackend {
	best := map[netip.AddrPort]mBackend{}
	for _, slice := range from {
		if slice.headless || slice.ipv6 != id.IPv6 {
			continue
		}
		for _, p := range slice.ports {
			if p.name != id.Port || protocol(p.protocol) != id.Protocol {
				continue
			}
			for _, e := range slice.endpoints {
				b := mBackend{addr: netip.AddrPortFrom(e.ip, p.number), ready: e.ready != "false", serving: e.serving != "false",
					terminating: e.terminating == "true", here: e.node == "node", node: hint(e.forNodes, "node"), zone: hint(e.forZones, zone)}
				if other, ok := best[b.addr]; !ok || b.before(other) {
					best[b.addr] = b
				}
			}
		}
	}
	out := make([]mBackend, 0, len(best))
	for _, b := range best {
		out = append(out, b)
	}
	slices.SortFunc(out, func(a, b mBackend) int { return a.addr.Compare(b.addr) })
	return out
}

// before says which of two endpoints with one address counts: one that stays, is
// ready, serves, or is here. The hints only have to make it the same one each time.
func (b mBackend) before(c mBackend) bool {
	switch {
	case b.terminating != c.terminating:
		return c.terminating
	case b.ready != c.ready:
		return b.ready
	case b.serving != c.serving:
		return b.serving
	case b.here != c.here:
		return b.here
	case b.node != c.node:
		return b.node < c.node
	}
	return b.zone < c.zone
}

func hint(names []string, ours string) lb.Hint {
	switch {
	case len(names) == 0 || ours == "":
		return lb.NoHint
	case slices.Contains(names, ours):
		return lb.HintHere
	}
	return lb.HintElsewhere
}

// eligible returns where new connections go: to endpoints of any node, or of ours.
func eligible(backends []mBackend, local bool) []netip.AddrPort {
	where := func(is func(mBackend) bool) (out []netip.AddrPort) {
		for _, b := range backends {
			if is(b) && (b.here || !local) {
				out = append(out, b.addr)
			}
		}
		return out
	}
	all := func(is func(mBackend) bool) bool {
		return !slices.ContainsFunc(backends, func(b mBackend) bool { return b.ready && !is(b) })
	}
	ready := where(func(b mBackend) bool { return b.ready })
	if len(ready) == 0 {
		return where(func(b mBackend) bool { return b.serving && b.terminating })
	}
	if local {
		return ready
	}
	forNode := where(func(b mBackend) bool { return b.ready && b.node == lb.HintHere })
	if len(forNode) > 0 && all(func(b mBackend) bool { return b.node != lb.NoHint }) {
		return forNode
	}
	forZone := where(func(b mBackend) bool { return b.ready && b.zone == lb.HintHere })
	if len(forZone) > 0 && all(func(b mBackend) bool { return b.zone != lb.NoHint }) {
		return forZone
	}
	return ready
}

// live reports whether flows that are at an endpoint may stay there.
func live(backends []mBackend, addr netip.AddrPort) bool {
	return slices.ContainsFunc(backends, func(b mBackend) bool { return b.addr == addr && (b.ready || b.serving) })
}

// backendsFor returns the endpoints for a client that is on our node, or is not.
func (o *mOwner) backendsFor(inside bool) []netip.AddrPort {
	return eligible(o.backends, o.local && (o.kind == lb.ClusterIP || !inside))
}

// allows reports whether the ranges let a client ask.
func (m *model) allows(o *mOwner, src netip.Addr) bool {
	contains := func(ip netip.Addr) bool {
		return slices.ContainsFunc(o.ranges, func(p netip.Prefix) bool { return p.Contains(ip) })
	}
	return len(o.ranges) == 0 || contains(src) || slices.Contains(o.vips, src) && slices.ContainsFunc(m.nodeAddresses, contains)
}

// inside reports whether a client that asks for dst is on our node.
func (m *model) inside(src, dst netip.Addr) bool {
	return src.IsLoopback() || src == dst || slices.Contains(m.local, src) || slices.Contains(m.nodeAddresses, src) ||
		slices.ContainsFunc(m.podCIDRs, func(p netip.Prefix) bool { return p.Contains(src) })
}

// What becomes of a packet in the kernel.
const (
	untouched = "untouched"
	steered   = "steered"
	held      = "accepted for a listener"
)

// owner returns whose an address is, as far as packets on our node go: a node port
// is at the addresses served.
func (m *model) owner(f lb.Frontend, nodePorts []netip.Addr) *mOwner {
	if o := m.owners[f]; o != nil {
		return o
	}
	ip := f.Addr.Addr()
	if !slices.Contains(nodePorts, ip) {
		return nil
	}
	return m.owners[lb.Frontend{Protocol: f.Protocol, Addr: netip.AddrPortFrom(unspecified(ip.Is6()), f.Addr.Port())}]
}

// checks reports whether the health checks of a Service are asked at an address.
func (m *model) checks(f lb.Frontend, nodePorts []netip.Addr) bool {
	if f.Protocol != lb.TCP || !slices.Contains(nodePorts, f.Addr.Addr()) {
		return false
	}
	for key := range m.health {
		if key.ipv6 == f.Addr.Addr().Is6() && key.port == f.Addr.Port() {
			return true
		}
	}
	return false
}

// fate returns what the kernel does with a client's first packet to an address of
// this owner.
func (m *model) fate(o *mOwner, src, dst netip.Addr) string {
	switch {
	case o == nil:
		return untouched
	case len(eligible(o.backends, false)) == 0:
		return refused // every client: none is dropped
	case !m.allows(o, src), len(o.backendsFor(m.inside(src, dst))) == 0:
		return dropped
	case o.kind == lb.NodePort:
		return held
	}
	return steered
}

func protocol(name string) lb.Protocol {
	if name == "UDP" {
		return lb.UDP
	}
	return lb.TCP
}

var unspecified = testbed.Unspecified
