package redirect

import (
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/lb"
)

// path is what becomes of the first datagram that a client sends to a frontend.
// The zero path is that of a frontend we have nothing to do with, or listen on: it
// goes where it was sent.
type path struct {
	port       uint16         // where it is steered to, if not 0
	closed     bool           // it is refused or dropped
	outside    bool           // it is dropped unless from this node or from inside
	inside     []netip.Prefix // nil unless outside
	restricted bool           // it is dropped unless from sources
	sources    []netip.Prefix
}

func (p path) equal(q path) bool {
	return p.port == q.port && p.closed == q.closed && p.outside == q.outside && p.restricted == q.restricted &&
		slices.Equal(p.inside, q.inside) && slices.Equal(p.sources, q.sources)
}

// udp returns what becomes of those who ask UDP frontends. The plan is one of
// Plan.family.
func (p Plan) udp() map[netip.AddrPort]path {
	m := make(map[netip.AddrPort]path)
	set := func(f lb.Frontend, change func(*path)) {
		if f.Protocol == lb.UDP {
			x := m[f.Addr]
			change(&x)
			m[f.Addr] = x
		}
	}
	for _, s := range p.Ported {
		set(s.Frontend, func(x *path) { x.port = s.Port })
	}
	for _, f := range p.Accept {
		set(f, func(*path) {})
	}
	for _, f := range slices.Concat(p.Refuse, p.Drop) {
		set(f, func(x *path) { x.closed = true })
	}
	for _, f := range p.DropOutside {
		set(f, func(x *path) { x.outside, x.inside = true, p.Inside })
	}
	for _, r := range p.Restricted {
		set(r.Frontend, func(x *path) { x.restricted, x.sources = true, r.Sources })
	}
	return m
}

// flowFilter chooses conntrack entries of UDP flows that are stale: netfilter looks
// at rules only for the first packet of a flow, and if that packet came now it would
// take another path. It is a netlink.CustomConntrackFilter.
type flowFilter struct {
	changed map[netip.AddrPort]bool // frontends whose flows are looked at
	paths   map[netip.AddrPort]path // of all UDP frontends
	local   map[netip.Addr]bool     // addresses of this node
}

// MatchConntrackFlow reports whether an entry is to be deleted.
func (f flowFilter) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	if flow.Forward.Protocol != unix.IPPROTO_UDP {
		return false
	}
	dst, ok := netip.AddrFromSlice(flow.Forward.DstIP)
	if !ok {
		return false
	}
	frontend := netip.AddrPortFrom(dst, flow.Forward.DstPort)
	changed := f.changed[frontend]
	p, exact := f.paths[frontend]
	if !exact && f.isLocal(dst) {
		node := netip.AddrPortFrom(unspecified(dst.Is6()), flow.Forward.DstPort)
		p, changed = f.paths[node], changed || f.changed[node]
	}
	if !changed {
		return false
	}
	src, _ := netip.AddrFromSlice(flow.Forward.SrcIP)
	if p.closed || p.outside && !f.isLocal(src) && !contains(p.inside, src) || p.restricted && !contains(p.sources, src) {
		return true
	}
	from, _ := netip.AddrFromSlice(flow.Reverse.SrcIP) // who answers
	if p.port != 0 {
		return flow.Reverse.SrcPort != p.port || !f.isLocal(from)
	}
	return netip.AddrPortFrom(from, flow.Reverse.SrcPort) != frontend
}

func (f flowFilter) isLocal(a netip.Addr) bool { return a.IsLoopback() || f.local[a] }

func contains(list []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
}

// deleteFlows deletes the entries that a filter chooses and returns their number.
func deleteFlows(f flowFilter, ipv6 bool) (uint64, error) {
	var err error
	if f.local, err = netfilter.LocalAddrs(); err != nil {
		return 0, err
	}
	asked := make([]uint16, 0, len(f.changed))
	for frontend := range f.changed {
		asked = append(asked, frontend.Port())
	}
	return netfilter.DeleteFlows(ipv6, asked, nil, f)
}

func deleteUnanswered(ipv6 bool, tcp, sctp []netip.AddrPort) (uint64, error) {
	return netfilter.DeleteUnanswered(ipv6, tcp, sctp)
}
