package iptables

import (
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/netfilter/conntrack"
	"github.com/sluice-lb/sluice/lb"
)

// flows are the UDP frontends whose conntrack entries are to be checked. A datagram
// belongs to no connection, but netfilter takes those between two ports for one flow,
// and sends them all where it sent the first. TCP and SCTP end with their backend.
//
// They outlive a Sync that failed.
type flows map[netip.AddrPort]*frontend

// frontend has where the flows of a frontend may be.
type frontend struct {
	had     []netip.AddrPort // backends before
	unknown bool             // it is not known what was there
	ours    bool             // now
	allowed []netip.AddrPort // backends now
}

// changeAll adds every frontend.
func (f *flows) changeAll(services map[lb.ID]*lb.Service) {
	for _, s := range services {
		f.each(s, func(x *frontend, a lb.Address) { x.unknown, x.ours, x.allowed = true, true, allowed(s, a) })
	}
}

// change adds the frontends that have lost backends, have come or have gone.
func (f *flows) change(changes []lb.Change) {
	for _, c := range changes {
		f.each(c.Old, func(x *frontend, _ lb.Address) {
			for _, b := range c.Old.Backends {
				if !slices.Contains(x.had, b.Addr) {
					x.had = append(x.had, b.Addr)
				}
			}
			x.ours, x.allowed = false, nil
		})
	}
	for _, c := range changes { // after all of the old ones: an address may have another Service
		f.each(c.New, func(x *frontend, a lb.Address) { x.ours, x.allowed = true, allowed(c.New, a) })
	}
}

// each calls do for each frontend of a UDP Service, which may be nil.
func (f *flows) each(s *lb.Service, do func(*frontend, lb.Address)) {
	if s == nil || s.Protocol != lb.UDP {
		return
	}
	if *f == nil {
		*f = make(flows)
	}
	for _, a := range s.Addresses {
		if (*f)[a.Addr] == nil {
			(*f)[a.Addr] = new(frontend)
		}
		do((*f)[a.Addr], a)
	}
}

// allowed returns the backends that flows to an address of a Service may be at.
func allowed(s *lb.Service, a lb.Address) []netip.AddrPort {
	backends := s.Eligible()
	if a.Local && a.Kind == lb.ClusterIP {
		backends = s.EligibleLocal()
	} else if a.Local {
		backends = append(backends, s.EligibleLocal()...)
	}
	list := make([]netip.AddrPort, 0, len(backends))
	for _, b := range backends {
		list = append(list, b.Addr)
	}
	return list
}

// delete deletes the entries of flows that are not where they should be, and returns
// their number.
func (f *flows) delete(ipv6 bool) (uint64, error) {
	if len(*f) == 0 {
		return 0, nil
	}
	local, err := conntrack.LocalAddrs()
	if err != nil {
		return 0, err
	}
	ports := make([]uint16, 0, len(*f))
	for addr := range *f {
		ports = append(ports, addr.Port())
	}
	n, err := conntrack.DeleteFlows(ipv6, ports, ports, flowFilter{*f, local})
	if err == nil {
		*f = nil
	}
	return n, err
}

// flowFilter chooses conntrack entries of UDP flows. It is a
// netlink.CustomConntrackFilter.
type flowFilter struct {
	flows
	local map[netip.Addr]bool
}

// MatchConntrackFlow reports whether an entry is to be deleted. A flow to a port of this
// node that is no backend of the frontend is that of a proxy, which has it while the
// Service is moving, and deletes it itself when it lets go.
func (f flowFilter) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	if flow.Forward.Protocol != unix.IPPROTO_UDP {
		return false
	}
	// A flow that the socket of a node port began by answering too late: its destination is
	// the client.
	if _, x := f.frontend(flow.Forward.SrcIP, flow.Forward.SrcPort); x != nil && x.ours {
		return true
	}
	destination, x := f.frontend(flow.Forward.DstIP, flow.Forward.DstPort)
	if x == nil {
		return false
	}
	from, _ := netip.AddrFromSlice(flow.Reverse.SrcIP) // of the answers
	backend := netip.AddrPortFrom(from, flow.Reverse.SrcPort)
	switch {
	case slices.Contains(x.allowed, backend):
		return false
	case slices.Contains(x.had, backend), x.unknown:
		return true
	case !x.ours:
		return false
	}
	return backend == destination || !f.local[from] && !from.IsLoopback()
}

// frontend returns the address of one end of a flow, and the frontend that it is of, nil if
// that is not to be checked. What comes by loopback is not ours.
func (f flowFilter) frontend(ip net.IP, port uint16) (netip.AddrPort, *frontend) {
	addr, _ := netip.AddrFromSlice(ip)
	end := netip.AddrPortFrom(addr, port)
	x := f.flows[end]
	if x == nil && f.local[addr] && !addr.IsLoopback() {
		any := netip.IPv4Unspecified()
		if addr.Is6() {
			any = netip.IPv6Unspecified()
		}
		x = f.flows[netip.AddrPortFrom(any, port)]
	}
	return end, x
}
