package balancer

import (
	"net/netip"

	"github.com/sluice-lb/sluice/lb"
)

// What services request, as it holds for connections.

// nothing is what a choice that is not valid requests.
var nothing lb.Policies

// Policies returns what holds for connections of the service that c is for, at this moment and also after the service
// has gone. It is one atomic load, and never nil; what it returns is not to be written to.
func (c Choice) Policies() *lb.Policies {
	if c.backend == nil {
		return &nothing
	}
	return c.backend.service.policies.Load()
}

// Policies returns what holds for connections to a frontend, without a Pick; what is given for all if no service has
// it. It neither allocates nor waits.
func (b *Balancer) Policies(f lb.Frontend) *lb.Policies {
	snap := b.load()
	if at, ok := snap.table.Find(&f); ok {
		return snap.service(at.Slot).state.policies.Load()
	}
	return &b.Defaults
}

// CountsInFlight is Policies.CountsInFlight of the service that has a frontend. It neither allocates nor waits.
func (b *Balancer) CountsInFlight(f lb.Frontend) bool {
	snap := b.load()
	at, ok := snap.table.Find(&f)
	return ok && snap.service(at.Slot).state.countsInFlight.Load()
}

// Transparent reports whether a connection to the backend of c is to come from the client's own address: if its service
// requests that, and it is a backend of this node whose answers pass here (lb.Table.Answers).
func (b *Balancer) Transparent(c Choice, client netip.Addr) bool {
	if c.Policies().Transparent != lb.On || !c.backend.is(onNode) {
		return false
	}
	return b.load().table.Answers(c.backend.addr.Addr(), client)
}

// Appear notes that the backend of c has accepted a connection from the client's own address.
func (c Choice) Appear() { c.backend.appeared.Store(true) }

// Appeared reports whether it ever has.
func (c Choice) Appeared() bool { return c.backend.appeared.Load() }
