package ipvs

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/kernelmodes"
	"github.com/sluice-lb/sluice/lb"
)

// host is all that rendering depends on besides the Services.
type host struct {
	ipv6       bool
	scheduler  string   // default
	missing    []string // schedulers that the kernel lacks
	masquerade masquerade
	pods       []netip.Prefix // of this node
	node       []netip.Addr   // its addresses
	exclude    []netip.Prefix // where virtual servers are never removed
}

// key names a virtual server: by its frontend, or by the mark of packets.
type key struct {
	lb.Frontend // not with a mark
	mark        uint32
}

// member returns what stands for a virtual server in sets: the number of a mark, or the address.
func (k key) member() netfilter.Member {
	if k.mark != 0 {
		return netfilter.Member{Port: uint16(k.mark >> numberShift)}
	}
	return netfilter.MemberOf(k.Frontend)
}

// server is a virtual server.
type server struct {
	scheduler string
	flags     uint32
	timeout   uint32                  // of persistence, in seconds
	backends  []weighted              // sorted
	ended     map[netip.AddrPort]bool // those that lose their connections
	udp       bool
}

// weighted is a backend with its weight.
type weighted struct {
	addr   netip.AddrPort
	weight int // at least 1
}

func (b weighted) compare(a netip.AddrPort) int { return b.addr.Compare(a) }

func (s server) same(t server) bool {
	return s.scheduler == t.scheduler && s.flags == t.flags && s.timeout == t.timeout
}

// rendered is what a Service needs in the kernel.
type rendered struct {
	frontends []frontend
	self      []netfilter.Member // of set SELF
	fallback  *Fallback          // nil: it gets the scheduler that it requests
}

// frontend is what one address of a Service needs.
type frontend struct {
	key
	exact   bool     // not a node port on every address
	address bool     // this node's by our routes
	members []member // of sets, beside FRONTENDS
	server  *server  // nil: none
	near    *server  // for clients on this node, by a mark; nil: they use server
}

// member is one of a set.
type member struct {
	set string
	netfilter.Member
}

// render returns what a Service needs. It depends on no other Service.
func (h *host) render(s *lb.Service) (out rendered) {
	cluster, local := backends(s.Eligible()), backends(s.EligibleLocal())
	var balance server
	balance, out.fallback = h.balance(s)
	for i := range s.Backends {
		if s.Backends[i].Ended {
			if balance.ended == nil {
				balance.ended = make(map[netip.AddrPort]bool)
			}
			balance.ended[s.Backends[i].Addr] = true
		}
	}
	for _, a := range s.Addresses {
		exact, at := !a.Addr.Addr().IsUnspecified(), h.node
		if exact {
			at = []netip.Addr{a.Addr.Addr()}
		}
		for _, ip := range at {
			if ip.IsLoopback() {
				continue
			}
			f := frontend{exact: exact, address: exact && a.Kind != lb.NodePort && !slices.Contains(h.node, ip)}
			f.Frontend = lb.Frontend{Protocol: s.Protocol, Addr: netip.AddrPortFrom(ip, a.Addr.Port())}
			h.restrict(&f, a.Sources)
			h.serve(&f, s, a, balance, cluster, local)
			out.frontends = append(out.frontends, f)
		}
	}
	if len(out.frontends) == 0 {
		return rendered{}
	}
	for i := range s.Backends {
		// A pod that gets itself would see a packet from its own address.
		ip := s.Backends[i].Addr.Addr()
		if s.Backends[i].Local || len(h.pods) == 0 || netfilter.Contains(h.pods, ip) {
			m := netfilter.MemberOf(lb.Frontend{Protocol: s.Protocol, Addr: s.Backends[i].Addr})
			m.Net = netip.PrefixFrom(ip, ip.BitLen())
			out.self = append(out.self, m)
		}
	}
	return out
}

func backends(list []lb.Backend) []weighted {
	out := make([]weighted, 0, len(list))
	for _, b := range list {
		out = append(out, weighted{b.Addr, max(1, int(b.Weight))})
	}
	slices.SortFunc(out, func(a, b weighted) int { return a.compare(b.addr) })
	return slices.CompactFunc(out, func(a, b weighted) bool { return a.addr == b.addr })
}

// in makes a frontend a member of a set.
func (f *frontend) in(set string) { f.members = append(f.members, member{set, f.member()}) }

// serve adds the virtual servers of a frontend at an address of a Service, or what
// becomes of its clients without one.
func (h *host) serve(f *frontend, s *lb.Service, a lb.Address, balance server, cluster, local []weighted) {
	switch {
	case a.Kind == lb.ClusterIP:
		f.in(setCluster)
	case !a.Local:
		f.in(setExternal)
	}
	all := cluster
	if a.Local {
		all = local
	}
	switch inside, outside := s.Verdicts(a); {
	case inside == lb.Refuse:
		f.in(setRefuse)
		return
	case inside == lb.Drop:
		f.in(setDrop)
		return
	case outside == lb.Drop:
		f.in(setOutside)
	default:
		f.server = balance.with(all)
	}
	if !a.Local || a.Kind == lb.ClusterIP || slices.Equal(cluster, local) {
		return
	}
	// Clients on this node have a virtual server of their own, since others get this
	// node's backends only.
	if balance.flags&flagPersistent != 0 {
		// The kernel does not translate the port of persistent connections to virtual
		// servers that are marks (ip_vs_sched_persist). A choice by the client's address
		// stays the same as long as the backends do: mh moves few clients when they change.
		sticky, missing := h.usable("mh") // Linux 4.18
		if missing != nil {
			sticky, _ = h.usable("sh")
		}
		sticky.udp, sticky.ended = balance.udp, balance.ended
		balance = sticky
	}
	f.near = balance.with(cluster)
}

func (s server) with(backends []weighted) *server {
	s.backends = backends
	return &s
}

// restrict admits only some clients.
func (h *host) restrict(f *frontend, sources []netip.Prefix) {
	admitted := kernelmodes.OfFamily(sources, h.ipv6)
	if len(sources) == 0 || slices.ContainsFunc(admitted, func(p netip.Prefix) bool { return p.Bits() == 0 }) {
		return
	}
	f.in(setRestricted)
	for _, p := range admitted {
		m := f.member()
		m.Net = p
		f.members = append(f.members, member{setAllowed, m})
	}
}

// balance returns how the virtual servers of a Service choose backends: by the scheduler that
// it requests; by the default one if the kernel lacks that or there is none of that name; or by rr.
func (h *host) balance(s *lb.Service) (srv server, fallback *Fallback) {
	standard := cmp.Or(h.scheduler, defaultScheduler)
	requested := s.Requests().Scheduler
	srv, reason := h.usable(cmp.Or(requested, standard))
	if reason != nil && requested != "" {
		srv, _ = h.usable(standard)
		fallback = &Fallback{Service: s.ID, Requested: requested, Used: srv.scheduler, Reason: reason.Error()}
	}
	if by := byWeight[srv.scheduler]; by != "" && s.Weighted() {
		switch weighs, missing := h.usable(by); {
		case missing == nil:
			if srv = weighs; fallback != nil {
				fallback.Used = by
			}
		case fallback == nil:
			fallback = &Fallback{Service: s.ID, Requested: by, Used: srv.scheduler, Reason: missing.Error()}
		}
	}
	srv.udp = s.Protocol == lb.UDP
	if s.AffinityTimeout > 0 {
		srv.flags |= flagPersistent
		srv.timeout = uint32((s.AffinityTimeout + int64(time.Second) - 1) / int64(time.Second))
	}
	return srv, fallback
}

// byWeight are the schedulers that do as others do, and take notice of weights.
var byWeight = map[string]string{"rr": "wrr", "lc": "wlc"}

// usable returns a virtual server with the scheduler that is requested, or with rr and why.
func (h *host) usable(requested string) (server, error) {
	name, flags, err := parseScheduler(requested)
	if err == nil && slices.Contains(h.missing, name) {
		err = noScheduler{name}
	}
	if err != nil {
		return server{scheduler: defaultScheduler}, err
	}
	return server{scheduler: name, flags: flags}, nil
}
