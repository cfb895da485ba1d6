package redirect

import (
	"maps"
	"net/netip"
	"time"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/internal/netfilter/conntrack"
	"github.com/sluice-lb/sluice/lb"
)

// flowFilter chooses conntrack entries of UDP flows that are stale: netfilter looks
// at rules only for the first packet of a flow, and if that packet came now it would
// take another path.
type flowFilter struct {
	changed map[netip.AddrPort]bool // frontends whose flows are looked at
	entries map[lb.Frontend]Entry   // of all frontends
	inside  []netip.Prefix          // where pods of this node are
	local   map[netip.Addr]bool     // addresses of this node
	bind    netip.Addr              // where packets are redirected to; invalid or unspecified: any of these
}

// deleteStaleFlows deletes conntrack entries of changed frontends that are stale.
func (s *steerer) deleteStaleFlows(ipv6 bool, bind netip.Addr, observe func(time.Duration)) error {
	if len(s.changed) == 0 {
		return nil
	}
	start := time.Now()
	n, err := deleteFlows(flowFilter{changed: s.changed, entries: s.entries, inside: s.host.Inside, bind: bind}, ipv6)
	s.flows.Add(n)
	if observe != nil {
		observe(time.Since(start))
	}
	if err == nil {
		clear(s.changed)
	}
	return err
}

// stale reports whether an entry is to be deleted.
func (f flowFilter) stale(flow conntrack.Flow) bool {
	src, dst := flow.Src.Addr(), flow.Dst.Addr()
	changed := f.changed[flow.Dst]
	e, exact := f.entries[lb.Frontend{Protocol: lb.UDP, Addr: flow.Dst}]
	if !exact && f.isLocal(dst) {
		node := netip.AddrPortFrom(netfilter.Unspecified(dst.Is6()), flow.Dst.Port())
		e, changed = f.entries[lb.Frontend{Protocol: lb.UDP, Addr: node}], changed || f.changed[node]
	}
	if !changed {
		return false
	}
	if e.Action == Refuse || e.Action == Drop || e.Sources != nil && !netfilter.Contains(e.Sources, src) ||
		e.DropOutside && !f.isLocal(src) && !netfilter.Contains(f.inside, src) {
		return true
	}
	if e.Action == Redirect {
		at := flow.Replies.Addr()
		elsewhere := f.bind.IsValid() && !f.bind.IsUnspecified() && at != f.bind
		return flow.Replies.Port() != e.Port || !f.isLocal(at) || elsewhere
	}
	return flow.Replies != flow.Dst
}

func (f flowFilter) isLocal(a netip.Addr) bool { return a.IsLoopback() || f.local[a] }

// deleteFlows deletes the entries that a filter chooses and returns their number.
func deleteFlows(f flowFilter, ipv6 bool) (uint64, error) {
	var err error
	if f.local, err = conntrack.LocalAddrs(); err != nil {
		return 0, err
	}
	return conntrack.DeleteFlows(lb.UDP, ipv6, maps.Keys(f.changed), false, f.stale)
}
