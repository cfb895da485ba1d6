package ipvs

import (
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-lb/sluice/lb"
)

// host is all that rendering depends on besides the Services.
type host struct {
	ipv6       bool
	scheduler  string            // default
	missing    map[string]string // schedulers that the kernel has not, and why
	masquerade masquerade
	pods       []netip.Prefix      // of this node
	node       []netip.Addr        // its addresses
	nodePorts  []netip.Addr        // those of them that have node ports
	own        map[netip.Addr]bool // on other interfaces than ours
}

// key names a virtual server: by protocol and address, or by the mark of packets.
type key struct {
	protocol lb.Protocol // not with a mark
	addr     netip.AddrPort
	mark     uint32
}

// server is a virtual server.
type server struct {
	scheduler string
	flags     uint32
	timeout   uint32           // of persistence, in seconds
	backends  []netip.AddrPort // sorted
	udp       bool
}

func (s server) same(t server) bool {
	return s.scheduler == t.scheduler && s.flags == t.flags && s.timeout == t.timeout
}

// renderer adds what a Service wants to a state, or takes it back.
type renderer struct {
	*state
	*unit
	n int32 // 1 or -1
}

// render has n more want what a Service wants at its exact addresses, or its node ports.
func (w *state) render(u *unit, exact bool, n int32) {
	r := renderer{w, u, n}
	var of *backends
	for _, a := range u.service.Addresses {
		if a.Addr.Addr().IsUnspecified() == exact {
			continue
		}
		if of == nil { // once, and only if there is an address
			of = r.backends()
		}
		at := []netip.Addr{a.Addr.Addr()}
		if !exact {
			at = r.nodePorts
		}
		for _, ip := range at {
			if ip.Is6() == r.ipv6 && !ip.IsLoopback() {
				r.frontend(a, lb.Frontend{Protocol: u.service.Protocol, Addr: netip.AddrPortFrom(ip, a.Addr.Port())}, of)
			}
		}
	}
}

func (r *renderer) want(set string, m netfilterMember) { r.sets[set].want(m, r.n) }

// backends are those of a Service.
type backends struct {
	cluster, local []netip.AddrPort
	server         server // without backends
}

func (r *renderer) backends() *backends {
	s := &r.service
	of := &backends{server: r.balance()}
	of.cluster, of.local = addresses(s.Eligible()), addresses(s.EligibleLocal())
	for i := range s.Backends {
		b := &s.Backends[i]
		here := b.Local || len(r.pods) == 0 || slices.ContainsFunc(r.pods, func(p netip.Prefix) bool { return p.Contains(b.Addr.Addr()) })
		if here {
			// A pod that gets itself would see a packet from its own address.
			m := memberOf(lb.Frontend{Protocol: s.Protocol, Addr: b.Addr})
			m.Net = netip.PrefixFrom(b.Addr.Addr(), b.Addr.Addr().BitLen())
			r.want(setSelf, m)
		}
	}
	return of
}

func addresses(list []lb.Backend) []netip.AddrPort {
	out := make([]netip.AddrPort, 0, len(list))
	for _, b := range list {
		out = append(out, b.Addr)
	}
	slices.SortFunc(out, netip.AddrPort.Compare)
	return slices.Compact(out)
}

// frontend is for one address f of a Service, of which a is the rules.
func (r *renderer) frontend(a lb.Address, f lb.Frontend, of *backends) {
	m := memberOf(f)
	if r.n > 0 && r.sets[setFrontends].all[m].wanted > 0 {
		r.clashes = true // who was first has it
		return
	}
	r.want(setFrontends, m)
	if ip := f.Addr.Addr(); a.Kind != lb.NodePort && !a.Addr.Addr().IsUnspecified() && !r.own[ip] {
		r.address(ip, r.n)
	}
	if len(a.Sources) > 0 {
		r.restrict(m, a.Sources)
	}
	switch {
	case a.Kind == lb.ClusterIP:
		r.want(setCluster, m)
	case !a.Local:
		r.want(setExternal, m)
	}
	inside, outside := r.service.Verdicts(a)
	all := of.cluster
	if a.Local {
		all = of.local
	}
	switch {
	case inside == lb.Refuse:
		r.want(setRefuse, m)
		return
	case inside == lb.Drop:
		r.want(setDrop, m)
		return
	case outside == lb.Drop:
		r.want(setOutside, m)
	default:
		r.serve(key{protocol: f.Protocol, addr: f.Addr}, of.server, all)
	}
	if a.Local && a.Kind != lb.ClusterIP && !slices.Equal(of.cluster, of.local) {
		r.serveInside(m, of)
	}
}

// serveInside gives clients on this node a virtual server of their own, for those of
// a Service's addresses where others get this node's backends only.
func (r *renderer) serveInside(m netfilterMember, of *backends) {
	if !r.numbered(m) {
		return
	}
	k := markOf(r.number)
	m.Mark = k.mark
	r.want(setNear, m)
	srv := of.server
	if srv.flags&flagPersistent != 0 {
		// The kernel does not translate the port of persistent connections to virtual
		// servers that are marks (ip_vs_sched_persist). To choose by the client's address
		// keeps it where it is as long as the backends are the same.
		srv.flags, srv.timeout = 0, 0
		srv.scheduler, srv.flags = r.sticky()
	}
	r.serve(k, srv, of.cluster)
}

// serve is for a virtual server.
func (r *renderer) serve(k key, srv server, to []netip.AddrPort) {
	r.name(k, r.n)
	r.pending[k] = struct{}{}
	if srv.backends = to; r.n > 0 {
		r.servers[k] = srv
	} else {
		delete(r.servers, k)
	}
}

// numbered has the Service have what tells it from others in marks: the number that it
// had before; that its frontend has in the kernel, from a process before; or one that
// nobody has, nor any virtual server that is there still. There are 65,535, far more than
// the addresses with policy Local that a cluster has.
func (r *renderer) numbered(frontend netfilterMember) bool {
	if r.number != 0 || r.n < 0 {
		return r.number != 0
	}
	if n := r.marks[frontend]; n != 0 && !r.taken(n) {
		r.take(n)
		return true
	}
	for range 1 << 16 {
		r.last++
		there := r.sets[setNumbers].all[netfilterMember{Port: r.last}].there
		if r.last != 0 && !there && !r.taken(r.last) {
			r.take(r.last)
			return true
		}
	}
	return false
}

func (r *renderer) taken(number uint16) bool {
	_, taken := r.numbers[number]
	return taken
}

func (r *renderer) take(number uint16) {
	r.numbers[number] = struct{}{}
	r.number = number
}

// markOf returns the virtual server for the mark of the Service with a number.
func markOf(number uint16) key { return key{mark: uint32(number) << numberShift} }

// restrict lets only some clients ask. A client of the node itself asks from the
// address that it asks for, if that is on the node, and may if any address of the
// node may.
func (r *renderer) restrict(m netfilterMember, sources []netip.Prefix) {
	var ours []netip.Prefix
	for _, p := range sources {
		if !p.IsValid() || p.Addr().Is6() != r.ipv6 {
			continue
		}
		if p.Bits() == 0 {
			return
		}
		ours = append(ours, p.Masked())
	}
	if slices.ContainsFunc(r.node, func(a netip.Addr) bool {
		return slices.ContainsFunc(ours, func(p netip.Prefix) bool { return p.Contains(a) })
	}) {
		ours = append(ours, netip.PrefixFrom(m.Addr, m.Addr.BitLen()))
	}
	r.want(setRestricted, m)
	for _, m.Net = range ours {
		r.want(setAllowed, m)
	}
}

// balance returns how a Service's virtual servers choose.
func (r *renderer) balance() server {
	s := &r.service
	srv := server{udp: s.Protocol == lb.UDP}
	srv.scheduler, srv.flags = r.choose()
	if s.AffinityTimeout > 0 {
		srv.flags |= flagPersistent
		srv.timeout = uint32((s.AffinityTimeout + int64(time.Second) - 1) / int64(time.Second))
	}
	return srv
}
