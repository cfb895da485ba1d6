package agent

import (
	"net/netip"
	"slices"

	"github.com/sluice-lb/sluice/internal/flows"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/redirect"
)

// Stale deletes entries of conntrack that keep packets where they do not belong (flows.Stale).
type Stale interface {
	Change(f lb.Frontend, was, now flows.Place, unknown bool)
	Add([]lb.Frontend)
	Reconcile(n *flows.Node, known func(lb.Frontend) bool) (again bool)
}

// reconcile deletes the conntrack entries that a plan makes stale, once its rules are written, and before the sockets
// that it does not need are closed. ended are the frontends whose proxy ports went on and have no flow any more.
func (a *Agent) reconcile(plan *Plan, ended []lb.Frontend) {
	if a.Stale == nil {
		return
	}
	plan.noteCarried()
	type places struct{ was, now flows.Place }
	all, served := make(map[lb.Frontend]places), make(map[lb.Frontend]bool)
	for _, l := range a.lateRemoved {
		for _, s := range l.services {
			a.kernelPlaces(l.path, s, false, func(f lb.Frontend, p flows.Place) { all[f] = places{was: p} })
		}
	}
	a.lateRemoved = nil
	for i := range plan.changes {
		if c := &plan.changes[i]; c.leavesEntries() && !c.postponed {
			a.places(c.old, func(f lb.Frontend, p flows.Place) { all[f] = places{was: p} })
		}
	}
	for i := range plan.changes {
		c := &plan.changes[i]
		if !c.leavesEntries() || c.postponed {
			continue
		}
		a.places(c.now, func(f lb.Frontend, p flows.Place) {
			all[f], served[f] = places{all[f].was, p}, true
		})
	}
	for f, p := range all {
		if !served[f] {
			p.now = a.placeAt(plan, f)
		}
		a.Stale.Change(f, p.was, p.now, plan.whole)
	}
	const unknown = true // what their places were before they went on
	for _, f := range ended {
		a.Stale.Change(f, flows.Place{}, a.placeAt(plan, f), unknown)
	}
	a.Stale.Add(added(plan, &a.sockets, a.damaged))
	node := flows.Node{Local: make(map[netip.Addr]bool, len(a.local)), Inside: a.steering.host.Inside}
	for _, addr := range a.local {
		node.Local[addr] = true
	}
	a.reconcileAgain = a.Stale.Reconcile(&node, func(f lb.Frontend) bool {
		_, at, ok := plan.table.Lookup(f)
		return ok && at.Addr == f.Addr
	})
}

// leavesEntries reports whether a change can leave stale entries: of TCP only one within the kernel.
func (c *change) leavesEntries() bool {
	return c.id().Protocol != lb.TCP || c.old.kernel != nil && c.now.kernel != nil && c.old.kernel != c.now.kernel
}

// noteCarried notes which pieces of UDP may have flows that another path began (piece.carries). A piece has them until
// its service port or this process ends: nothing says when the last of these flows has ended.
func (p *Plan) noteCarried() {
	for i := range p.changes {
		if c := &p.changes[i]; c.now != nothing {
			c.now.carries = c.id().Protocol == lb.UDP && (c.old.carries || c.moves())
		}
	}
}

// placeAt returns what serves a frontend that a change has left, such as an address of this node at which a node port
// answers now.
func (a *Agent) placeAt(plan *Plan, f lb.Frontend) (at flows.Place) {
	p, owned := a.planner.pieceAt(plan, f)
	a.places(p, func(of lb.Frontend, p flows.Place) {
		if of == f || of.Addr == owned.Addr {
			at = p
		}
	})
	return at
}

// places calls do for the frontends of a piece, with what serves each.
func (a *Agent) places(p *piece, do func(lb.Frontend, flows.Place)) {
	if p == nothing {
		return
	}
	if p.kernel != nil {
		a.kernelPlaces(p.choice.Path, p.kernel, p.carries, do)
		return
	}
	for i := range p.steered {
		e := &p.steered[i]
		place := flows.Place{Sources: e.Sources, OnlyInside: e.DropOutside}
		switch e.Action {
		case redirect.Redirect:
			place.Kind, place.Port, place.Bind = flows.Proxy, e.Port, a.bind(e.Frontend)
		case redirect.Accept:
			place.Kind = flows.Socket
		case redirect.Refuse, redirect.Drop:
			place.Kind = flows.Refused
		case redirect.Pass:
		}
		if p.carries {
			place.Endpoints = addrsOf(p.service.Eligible())
		}
		do(e.Frontend, place)
	}
}

// kernelPlaces calls do for the frontends of a Service that the kernel forwards.
func (a *Agent) kernelPlaces(path Path, s *lb.Service, carries bool, do func(lb.Frontend, flows.Place)) {
	for i := range s.Addresses {
		addr := &s.Addresses[i]
		f := lb.Frontend{Protocol: s.Protocol, Addr: addr.Addr}
		place := flows.Place{Kind: flows.Kernel, Endpoints: endpointsOf(s, addr)}
		if path == IPVS {
			place.Kind = flows.IPVS // which takes what comes to a socket
		}
		exits := a.offload[family(f.Addr.Addr().Is6())] // and its sockets with it
		place.AtSocket = carries && place.Kind == flows.Kernel && !exits && a.sockets.holds(f)
		if a.sockets.goingOn[f] {
			place.Port = a.sockets.proxyPort(f)
		}
		do(f, place)
	}
}

// endpointsOf returns the endpoints that flows to an address of a Service that the kernel forwards may be at.
func endpointsOf(s *lb.Service, a *lb.Address) []netip.AddrPort {
	switch {
	case s.Protocol == lb.SCTP: // an association stays where it is served, though new ones may not go there
		return addrsOf(slices.DeleteFunc(slices.Clone(s.Backends),
			func(b lb.Backend) bool { return !b.Ready && !(b.Serving && b.Terminating) }))
	case a.Local && a.Kind == lb.ClusterIP:
		return addrsOf(s.EligibleLocal())
	case a.Local: // its node's own clients may be at any
		return append(addrsOf(s.Eligible()), addrsOf(s.EligibleLocal())...)
	}
	return addrsOf(s.Eligible())
}

func addrsOf(backends []lb.Backend) []netip.AddrPort {
	out := make([]netip.AddrPort, 0, len(backends))
	for i := range backends {
		out = append(out, backends[i].Addr)
	}
	return out
}
