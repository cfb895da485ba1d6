package ipvs

import (
	"maps"
	"net/netip"

	"github.com/sluice-lb/sluice/internal/netfilter/conntrack"
	"github.com/sluice-lb/sluice/lb"
)

// flows are UDP frontends whose conntrack entries are to be checked since a change,
// with the backends that have left them. UDP clients have no connections, but an entry
// keeps their datagrams on the path of the first one, and ipvs drops one that comes to a
// backend which is gone. They outlive a failed Sync.
type flows struct {
	changed map[netip.AddrPort]map[netip.AddrPort]bool
	leads   map[key][]netip.AddrPort // UDP frontends by which clients get to marks
}

// note adds that a backend has left a virtual server; an invalid one: the server is new.
func (f *flows) note(x key, gone netip.AddrPort) {
	if x.mark == 0 && x.Protocol == lb.UDP {
		f.add(x.Addr, gone)
	}
	for _, frontend := range f.leads[x] {
		f.add(frontend, gone)
	}
}

func (f *flows) add(frontend, gone netip.AddrPort) {
	if f.changed == nil {
		f.changed = make(map[netip.AddrPort]map[netip.AddrPort]bool)
	}
	if f.changed[frontend] == nil {
		f.changed[frontend] = make(map[netip.AddrPort]bool)
	}
	f.changed[frontend][gone] = true
}

// delete deletes the entries of flows that lead to backends that have gone, or that began
// before there was a virtual server.
func (f *flows) delete(ipv6 bool) error {
	if len(f.changed) == 0 {
		return nil
	}
	_, err := conntrack.DeleteFlows(lb.UDP, ipv6, maps.Keys(f.changed), true, f.stale)
	if err == nil {
		f.changed = nil
	}
	return err
}

// stale reports whether an entry is to be deleted.
func (f *flows) stale(flow conntrack.Flow) bool {
	// A flow that a socket of ours began by answering too late: its destination is the client.
	if _, changed := f.changed[flow.Src]; changed {
		return true
	}
	gone, changed := f.changed[flow.Dst]
	return changed && (flow.Replies == flow.Dst || gone[flow.Replies])
}
