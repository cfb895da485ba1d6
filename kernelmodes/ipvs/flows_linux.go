package ipvs

import (
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/netfilter/conntrack"
	"github.com/sluice-lb/sluice/lb"
)

// flows are UDP frontends whose conntrack entries are to be checked since a change,
// with the backends that have left them. UDP clients have no connections, but an entry
// keeps their datagrams on the path of the first one, and ipvs drops one that comes to a
// backend which is gone. They outlive a failed Sync.
type flows map[netip.AddrPort]map[netip.AddrPort]bool

// note adds what has become of backends, with the UDP frontends that lead to marks, as
// long as clients could reach them.
func (f *flows) note(changes []change, near map[key][]netip.AddrPort) {
	for _, c := range changes {
		if c.key.mark == 0 && c.key.protocol == lb.UDP {
			f.add(c.key.addr, c.gone)
		}
		for _, frontend := range near[c.key] {
			f.add(frontend, c.gone)
		}
	}
}

func (f *flows) add(frontend, gone netip.AddrPort) {
	if *f == nil {
		*f = make(flows)
	}
	if (*f)[frontend] == nil {
		(*f)[frontend] = make(map[netip.AddrPort]bool)
	}
	(*f)[frontend][gone] = true
}

// delete deletes the entries of flows that lead to backends that have gone, or that began
// before there was a virtual server.
func (f *flows) delete(ipv6 bool) error {
	if len(*f) == 0 {
		return nil
	}
	ports := make([]uint16, 0, len(*f))
	for frontend := range *f {
		ports = append(ports, frontend.Port())
	}
	_, err := conntrack.DeleteFlows(ipv6, ports, ports, *f)
	if err == nil {
		*f = nil
	}
	return err
}

// MatchConntrackFlow reports whether an entry is to be deleted.
func (f flows) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	if flow.Forward.Protocol != unix.IPPROTO_UDP {
		return false
	}
	// A flow that a socket of ours began by answering too late: its destination is the client.
	source, _ := netip.AddrFromSlice(flow.Forward.SrcIP)
	if _, changed := f[netip.AddrPortFrom(source.Unmap(), flow.Forward.SrcPort)]; changed {
		return true
	}
	destination, _ := netip.AddrFromSlice(flow.Forward.DstIP)
	answers, _ := netip.AddrFromSlice(flow.Reverse.SrcIP)
	frontend := netip.AddrPortFrom(destination.Unmap(), flow.Forward.DstPort)
	gone, changed := f[frontend]
	backend := netip.AddrPortFrom(answers.Unmap(), flow.Reverse.SrcPort)
	return changed && (backend == frontend || gone[backend])
}
