package kernelmodes

import (
	"errors"
	"maps"
	"net/netip"
	"slices"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/internal/netfilter/conntrack"
	"github.com/sluice-lb/sluice/lb"
)

// Flows are the frontends of UDP and SCTP whose conntrack entries are to be checked. A datagram
// belongs to no connection, but netfilter takes those between two ports for one flow,
// and sends them all where it sent the first. So it does with an association that a client begins
// anew from the same port. TCP ends with its backend.
//
// They outlive a Sync that failed.
type Flows map[lb.Protocol]frontends

type frontends map[netip.AddrPort]*frontend

// frontend has where the flows of a frontend may be.
type frontend struct {
	had     []netip.AddrPort // backends before
	unknown bool             // it is not known what was there
	allowed []netip.AddrPort // backends now; nil: it is not ours
}

// ChangeAll adds every frontend.
func (f *Flows) ChangeAll(services map[lb.ID]*lb.Service) {
	for _, s := range services {
		f.each(s, func(x *frontend, a lb.Address) { x.unknown, x.allowed = true, allowed(s, a) })
	}
}

// Change adds the frontends that have lost backends, have come or have gone.
func (f *Flows) Change(changes []lb.Change) {
	for _, c := range changes {
		f.each(c.Old, func(x *frontend, _ lb.Address) {
			for _, b := range c.Old.Backends {
				if !slices.Contains(x.had, b.Addr) {
					x.had = append(x.had, b.Addr)
				}
			}
			x.allowed = nil
		})
	}
	for _, c := range changes { // after all of the old ones: an address may have another Service
		f.each(c.New, func(x *frontend, a lb.Address) { x.allowed = allowed(c.New, a) })
	}
}

// each calls do for each frontend of a Service of UDP or SCTP, which may be nil.
func (f *Flows) each(s *lb.Service, do func(*frontend, lb.Address)) {
	if s == nil || s.Protocol == lb.TCP {
		return
	}
	if *f == nil {
		*f = Flows{lb.UDP: {}, lb.SCTP: {}}
	}
	of := (*f)[s.Protocol]
	for _, a := range s.Addresses {
		if of[a.Addr] == nil {
			of[a.Addr] = new(frontend)
		}
		do(of[a.Addr], a)
	}
}

// allowed returns the backends that flows to an address of a Service may be at.
func allowed(s *lb.Service, a lb.Address) []netip.AddrPort {
	backends := s.Eligible()
	switch {
	case s.Protocol == lb.SCTP: // an association stays where it is served, though new ones may not go there
		backends = slices.DeleteFunc(slices.Clone(s.Backends),
			func(b lb.Backend) bool { return !b.Ready && !(b.Serving && b.Terminating) })
	case a.Local && a.Kind == lb.ClusterIP:
		backends = s.EligibleLocal()
	case a.Local:
		backends = append(backends, s.EligibleLocal()...)
	}
	list := make([]netip.AddrPort, 0, len(backends))
	for _, b := range backends {
		list = append(list, b.Addr)
	}
	return list
}

// Delete deletes the entries of flows that are not where they should be, and returns
// their number.
func (f *Flows) Delete(ipv6 bool) (n uint64, err error) {
	if len(*f) == 0 {
		return 0, nil
	}
	local, err := conntrack.LocalAddrs()
	if err != nil {
		return 0, err
	}
	for protocol, of := range *f {
		stale := func(flow conntrack.Flow) bool { return of.stale(flow, local) }
		if protocol == lb.SCTP {
			stale = func(flow conntrack.Flow) bool { return of.dead(flow, local) }
		}
		deleted, err2 := conntrack.DeleteFlows(protocol, ipv6, maps.Keys(of), protocol == lb.UDP, stale)
		n, err = n+deleted, errors.Join(err, err2)
	}
	if err == nil {
		*f = nil
	}
	return n, err
}

// stale reports whether an entry of UDP is to be deleted. A flow to a port of this
// node that is no backend of the frontend is that of a proxy, which has it while the
// Service is moving, and deletes it itself when it lets go.
func (f frontends) stale(flow conntrack.Flow, local map[netip.Addr]bool) bool {
	// A flow that the socket of a node port began by answering too late: its destination is
	// the client.
	if x := f.frontend(flow.Src, local); x != nil && x.allowed != nil {
		return true
	}
	x := f.frontend(flow.Dst, local)
	switch {
	case x == nil, slices.Contains(x.allowed, flow.Replies):
		return false
	case slices.Contains(x.had, flow.Replies), x.unknown:
		return true
	case x.allowed == nil:
		return false
	}
	return flow.Replies == flow.Dst || isElsewhere(flow, local)
}

// dead reports whether the endpoint of an association has left its Service, or does not serve any more, while there are
// others: without its entry the client reaches one of them when it begins anew. A Service that has gone, perhaps to
// another data path, keeps its associations.
func (f frontends) dead(flow conntrack.Flow, local map[netip.Addr]bool) bool {
	x := f.frontend(flow.Dst, local)
	if x == nil || len(x.allowed) == 0 || flow.Replies == flow.Dst || slices.Contains(x.allowed, flow.Replies) {
		return false
	}
	return slices.Contains(x.had, flow.Replies) || isElsewhere(flow, local)
}

// isElsewhere reports whether a flow is not at this node itself, as it is with a proxy.
func isElsewhere(flow conntrack.Flow, local map[netip.Addr]bool) bool {
	from := flow.Replies.Addr()
	return !local[from] && !from.IsLoopback()
}

// frontend returns the frontend that one end of a flow is of, nil if that is not to be
// checked. What comes by loopback is not ours.
func (f frontends) frontend(end netip.AddrPort, local map[netip.Addr]bool) *frontend {
	addr := end.Addr()
	if x := f[end]; x != nil || !local[addr] || addr.IsLoopback() {
		return x
	}
	return f[netip.AddrPortFrom(netfilter.Unspecified(addr.Is6()), end.Port())]
}

// DeleteTranslated deletes the entries of flows to UDP frontends whose rules are gone, so that they go where other
// rules or sockets are. Those that other rules have sent to this node have left already.
func DeleteTranslated(frontends map[netip.AddrPort]bool, ipv6 bool) (uint64, error) {
	local, err := conntrack.LocalAddrs()
	if err != nil {
		return 0, err
	}
	return conntrack.DeleteFlows(lb.UDP, ipv6, maps.Keys(frontends), false, func(flow conntrack.Flow) bool {
		return translated(flow, frontends, local)
	})
}

// translated reports whether an entry is that of a flow that rules of ours have sent to an endpoint.
func translated(flow conntrack.Flow, frontends map[netip.AddrPort]bool, local map[netip.Addr]bool) bool {
	addr := flow.Dst.Addr()
	node := netip.AddrPortFrom(netfilter.Unspecified(addr.Is6()), flow.Dst.Port())
	switch {
	case frontends[flow.Dst]:
		return !local[flow.Replies.Addr()]
	case frontends[node] && local[addr] && !addr.IsLoopback():
		return flow.Replies != flow.Dst
	}
	return false
}
