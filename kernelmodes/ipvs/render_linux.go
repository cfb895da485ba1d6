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
	before     map[lb.ID]uint16    // numbers that Services had
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

// state is all that is to be in the kernel. It is a pure function of the Services and
// the host.
type state struct {
	servers   map[key]server
	addresses []netip.Addr // of our interface, sorted
	sources   []netip.Addr // of the node, for it to ask them from
	sets      sets
	rules     []byte
	numbers   map[lb.ID]uint16
	fallbacks []Fallback
}

// renderer makes a state.
type renderer struct {
	host
	state
	owner map[lb.Frontend]bool // taken
	vips  map[netip.Addr]bool
	used  map[uint16]bool // numbers of this and earlier states
	next  uint16
}

// render returns what is to be in the kernel for services of one family.
func render(h host, services []lb.Service) *state {
	r := &renderer{host: h, owner: make(map[lb.Frontend]bool, len(services)), vips: make(map[netip.Addr]bool, len(services)), used: make(map[uint16]bool)}
	r.servers, r.sets = make(map[key]server, len(services)), make(sets)
	r.numbers, r.sources = make(map[lb.ID]uint16), h.node
	for _, n := range h.before {
		r.used[n] = true
	}
	// An exact address goes before a node port.
	for _, exact := range []bool{true, false} {
		for i := range services {
			if services[i].IPv6 == h.ipv6 {
				r.service(&services[i], exact)
			}
		}
	}
	for _, p := range h.pods {
		r.sets.addNet(setInside, p)
	}
	for a := range r.vips {
		r.addresses = append(r.addresses, a)
		r.sets.addNet(setAddresses, netip.PrefixFrom(a, a.BitLen()))
	}
	slices.SortFunc(r.addresses, netip.Addr.Compare)
	r.sets.sort()
	r.rules = shape{ipv6: h.ipv6, prefix: chainPrefix}.render(h.masquerade)
	return &r.state
}

// service adds what is wanted for the exact addresses, or the node ports, of a Service.
func (r *renderer) service(s *lb.Service, exact bool) {
	var of *backends
	for _, a := range s.Addresses {
		if a.Addr.Addr().IsUnspecified() == exact {
			continue
		}
		if of == nil { // once, and only if there is an address
			of = r.backends(s)
		}
		at := []netip.Addr{a.Addr.Addr()}
		if !exact {
			at = r.nodePorts
		}
		for _, ip := range at {
			f := lb.Frontend{Protocol: s.Protocol, Addr: netip.AddrPortFrom(ip, a.Addr.Port())}
			if ip.Is6() == r.ipv6 && !ip.IsLoopback() && !r.owner[f] {
				r.owner[f] = true
				r.frontend(s, a, f, of)
			}
		}
	}
}

// backends are those of a Service.
type backends struct {
	cluster, local []netip.AddrPort
	server         server // without backends
}

func (r *renderer) backends(s *lb.Service) *backends {
	of := &backends{server: r.balance(s)}
	of.cluster, of.local = addresses(s.Eligible()), addresses(s.EligibleLocal())
	for i := range s.Backends {
		b := &s.Backends[i]
		here := b.Local || len(r.pods) == 0 || slices.ContainsFunc(r.pods, func(p netip.Prefix) bool { return p.Contains(b.Addr.Addr()) })
		if here {
			// A pod that gets itself would see a packet from its own address.
			m := memberOf(lb.Frontend{Protocol: s.Protocol, Addr: b.Addr})
			m.Net = netip.PrefixFrom(b.Addr.Addr(), b.Addr.Addr().BitLen())
			r.sets.add(setSelf, m)
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

// frontend adds what is wanted for one address f of a Service, of which a is the
// rules.
func (r *renderer) frontend(s *lb.Service, a lb.Address, f lb.Frontend, of *backends) {
	m := memberOf(f)
	r.sets.add(setFrontends, m)
	if ip := f.Addr.Addr(); a.Kind != lb.NodePort && !a.Addr.Addr().IsUnspecified() && !r.own[ip] {
		r.vips[ip] = true
	}
	if len(a.Sources) > 0 {
		r.restrict(m, a.Sources)
	}
	switch {
	case a.Kind == lb.ClusterIP:
		r.sets.add(setCluster, m)
	case !a.Local:
		r.sets.add(setExternal, m)
	}
	inside, outside := s.Verdicts(a)
	all := of.cluster
	if a.Local {
		all = of.local
	}
	switch {
	case inside == lb.Refuse:
		r.sets.add(setRefuse, m)
		return
	case inside == lb.Drop:
		r.sets.add(setDrop, m)
		return
	case outside == lb.Drop:
		r.sets.add(setOutside, m)
	default:
		r.serve(key{protocol: f.Protocol, addr: f.Addr}, of.server, all)
	}
	if a.Local && a.Kind != lb.ClusterIP && !slices.Equal(of.cluster, of.local) {
		r.serveInside(s, m, of)
	}
}

// serveInside gives clients on this node a virtual server of their own, for those of
// a Service's addresses where others get this node's backends only.
func (r *renderer) serveInside(s *lb.Service, m netfilterMember, of *backends) {
	n, ok := r.number(s.ID)
	if !ok {
		return
	}
	mark := uint32(n) << numberShift
	m.Mark = mark
	r.sets.add(setNear, m)
	r.sets.add(setNumbers, netfilterMember{Port: n})
	srv := of.server
	if srv.flags&flagPersistent != 0 {
		// The kernel does not translate the port of persistent connections to virtual
		// servers that are marks (ip_vs_sched_persist). To choose by the client's address
		// keeps it where it is as long as the backends are the same.
		srv.flags, srv.timeout = 0, 0
		srv.scheduler, srv.flags = r.sticky()
	}
	r.serve(key{mark: mark}, srv, of.cluster)
}

func (r *renderer) serve(k key, srv server, to []netip.AddrPort) {
	srv.backends = to
	r.servers[k] = srv
}

// number returns what tells the Service from others in marks: the one that it had
// before, or one that nobody has had of those we know. There are 65,535, far more than
// the addresses with policy Local that a cluster has.
func (r *renderer) number(id lb.ID) (uint16, bool) {
	if n, ok := r.numbers[id]; ok {
		return n, true
	}
	n, ok := r.before[id]
	for tries := 0; !ok && tries < 1<<16; tries++ {
		r.next++
		n, ok = r.next, r.next != 0 && !r.used[r.next]
	}
	if ok {
		r.used[n] = true
		r.numbers[id] = n
	}
	return n, ok
}

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
	r.sets.add(setRestricted, m)
	for _, m.Net = range ours {
		r.sets.add(setAllowed, m)
	}
}

// balance returns how a Service's virtual servers choose.
func (r *renderer) balance(s *lb.Service) server {
	srv := server{udp: s.Protocol == lb.UDP}
	srv.scheduler, srv.flags = r.choose(s)
	if s.AffinityTimeout > 0 {
		srv.flags |= flagPersistent
		srv.timeout = uint32((s.AffinityTimeout + int64(time.Second) - 1) / int64(time.Second))
	}
	return srv
}
