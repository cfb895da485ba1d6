package redirect

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/lb"
)

// flowFilter chooses conntrack entries of UDP flows that are on a path which is
// no longer the plan's. It is a netlink.CustomConntrackFilter.
type flowFilter struct {
	changed map[netip.AddrPort]bool   // frontends whose flows are looked at
	steered map[netip.AddrPort]uint16 // all UDP frontends and their proxy ports
	local   map[netip.Addr]bool       // addresses of this node
}

// MatchConntrackFlow reports whether an entry is to be deleted: its original
// destination is a changed frontend, and its replies do not come from that
// frontend's proxy port on this node.
func (f flowFilter) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	if flow.Forward.Protocol != unix.IPPROTO_UDP {
		return false
	}
	dst, ok := netip.AddrFromSlice(flow.Forward.DstIP)
	if !ok {
		return false
	}
	frontend := netip.AddrPortFrom(dst, flow.Forward.DstPort)
	if _, exact := f.steered[frontend]; !exact && !f.changed[frontend] && f.isLocal(dst) {
		frontend = netip.AddrPortFrom(unspecified(dst.Is6()), flow.Forward.DstPort)
	}
	if !f.changed[frontend] {
		return false
	}
	port, ok := f.steered[frontend]
	from, _ := netip.AddrFromSlice(flow.Reverse.SrcIP)
	return !ok || flow.Reverse.SrcPort != port || !f.isLocal(from)
}

func (f flowFilter) isLocal(a netip.Addr) bool { return a.IsLoopback() || f.local[a] }

// deleteFlows deletes the entries that a filter chooses and returns their number.
func deleteFlows(f flowFilter, ipv6 bool) (uint64, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return 0, fmt.Errorf("list addresses of the node: %w", err)
	}
	f.local = make(map[netip.Addr]bool)
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok {
				f.local[ip.Unmap()] = true
			}
		}
	}
	family := netlink.InetFamily(unix.AF_INET)
	if ipv6 {
		family = unix.AF_INET6
	}
	n, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, f)
	if err != nil {
		return uint64(n), fmt.Errorf("delete conntrack entries of UDP frontends: %w", err)
	}
	return uint64(n), nil
}

// udp returns the UDP frontends with their proxy ports.
func (p Plan) udp() map[netip.AddrPort]uint16 {
	m := make(map[netip.AddrPort]uint16)
	for _, s := range p.Ported {
		if s.Frontend.Protocol == lb.UDP {
			m[s.Frontend.Addr] = s.Port
		}
	}
	return m
}
