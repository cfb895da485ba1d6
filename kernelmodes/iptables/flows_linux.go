package iptables

import (
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/lb"
)

// flows are the UDP frontends whose conntrack entries have to be looked at. A datagram
// belongs to no connection, but netfilter takes those between two ports for one flow,
// and sends them all where it sent the first. TCP and SCTP end with their backend.
//
// They outlive a Sync that failed.
type flows struct {
	changed map[netip.AddrPort]before
}

// before is where the flows of a frontend may be.
type before struct {
	backends []netip.AddrPort // that the frontend had
	any      bool             // it is not known what was there
}

// changeAll has every frontend looked at.
func (f *flows) changeAll(now *content) {
	f.init()
	for _, u := range now.units {
		eachUDP(u, func(addr netip.AddrPort, _ lb.Address) { f.changed[addr] = before{any: true} })
	}
}

func (f *flows) init() {
	if f.changed == nil {
		f.changed = make(map[netip.AddrPort]before)
	}
}

// change adds the frontends that have lost backends, have come or have gone.
func (f *flows) change(was, now *content) {
	f.init()
	for _, id := range now.changed(was) {
		if old := was.unit(id); old != nil {
			eachUDP(old, func(addr netip.AddrPort, _ lb.Address) {
				x := f.changed[addr]
				for _, b := range old.service.Backends {
					if !slices.Contains(x.backends, b.Addr) {
						x.backends = append(x.backends, b.Addr)
					}
				}
				f.changed[addr] = x
			})
		}
		if u := now.unit(id); u != nil {
			eachUDP(u, func(addr netip.AddrPort, _ lb.Address) {
				if _, ok := f.changed[addr]; !ok {
					f.changed[addr] = before{}
				}
			})
		}
	}
}

func eachUDP(u *unit, do func(netip.AddrPort, lb.Address)) {
	if u.service.Protocol != lb.UDP {
		return
	}
	for _, a := range u.service.Addresses {
		do(a.Addr, a)
	}
}

// forget deletes the entries of flows that are not where they should be, and returns
// their number.
func (f *flows) forget(ipv6 bool, now *content) (uint64, error) {
	if len(f.changed) == 0 {
		return 0, nil
	}
	filter := f.filter(now)
	var err error
	if filter.local, err = netfilter.LocalAddrs(); err != nil {
		return 0, err
	}
	ports := make([]uint16, 0, len(f.changed))
	for frontend := range f.changed {
		ports = append(ports, frontend.Port())
	}
	n, err := netfilter.DeleteFlows(ipv6, ports, ports, filter)
	if err == nil {
		clear(f.changed)
	}
	return n, err
}

// filter returns what chooses those entries, but for the node's own addresses.
func (f *flows) filter(now *content) flowFilter {
	filter := flowFilter{changed: f.changed, allowed: make(map[netip.AddrPort][]netip.AddrPort)}
	for _, u := range now.units {
		eachUDP(u, func(addr netip.AddrPort, a lb.Address) {
			if _, ok := f.changed[addr]; !ok {
				return
			}
			backends := u.service.Eligible()
			if a.Local && a.Kind == lb.ClusterIP {
				backends = u.service.EligibleLocal()
			} else if a.Local {
				backends = append(backends, u.service.EligibleLocal()...)
			}
			list := make([]netip.AddrPort, 0, len(backends))
			for _, b := range backends {
				list = append(list, b.Addr)
			}
			filter.allowed[addr] = list
		})
	}
	return filter
}

// flowFilter chooses conntrack entries of UDP flows. It is a
// netlink.CustomConntrackFilter.
type flowFilter struct {
	changed map[netip.AddrPort]before
	allowed map[netip.AddrPort][]netip.AddrPort // backends that flows may be at; absent: not our frontend any more
	local   map[netip.Addr]bool
}

// MatchConntrackFlow reports whether an entry is to be deleted. A flow to a port of
// this node that is no backend of the frontend is that of a proxy, which has it while
// the Service is moving, and says itself when it lets go.
func (f flowFilter) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	if flow.Forward.Protocol != unix.IPPROTO_UDP {
		return false
	}
	// One that the socket of a node port began when it answered too late: the client is
	// the one who answers.
	if _, is, changed := f.frontend(flow.Forward.SrcIP, flow.Forward.SrcPort); changed && is.ours {
		return true
	}
	asked, is, changed := f.frontend(flow.Forward.DstIP, flow.Forward.DstPort)
	if !changed {
		return false
	}
	from, _ := netip.AddrFromSlice(flow.Reverse.SrcIP) // who answers
	backend := netip.AddrPortFrom(from, flow.Reverse.SrcPort)
	switch {
	case slices.Contains(is.allowed, backend):
		return false
	case slices.Contains(is.was.backends, backend), is.was.any:
		return true
	case !is.ours:
		return false
	}
	return backend == asked || !f.local[from] && !from.IsLoopback()
}

// looked is what is known of a frontend that is looked at.
type looked struct {
	was     before
	allowed []netip.AddrPort
	ours    bool
}

// frontend returns the address of one end of a flow, and of which frontend it is, if
// that has changed. What comes by loopback is not ours.
func (f flowFilter) frontend(ip net.IP, port uint16) (end netip.AddrPort, is looked, changed bool) {
	addr, _ := netip.AddrFromSlice(ip)
	end = netip.AddrPortFrom(addr, port)
	at := end
	if is.was, changed = f.changed[at]; !changed && f.local[addr] && !addr.IsLoopback() {
		at = netip.AddrPortFrom(netip.IPv4Unspecified(), port)
		if addr.Is6() {
			at = netip.AddrPortFrom(netip.IPv6Unspecified(), port)
		}
		is.was, changed = f.changed[at]
	}
	is.allowed, is.ours = f.allowed[at]
	return end, is, changed
}
