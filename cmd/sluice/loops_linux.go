package main

import (
	"net/netip"

	"github.com/sluice-lb/sluice/internal/eventloop"
)

// newLoops starts the event loops.
func newLoops(n int) (*eventloop.Group, error) { return eventloop.NewGroup(n) }

// listenable returns addresses as node ports listen on them: a socket on all addresses
// knows which one a datagram was sent to.
func listenable(addrs, _ []netip.Addr) []netip.Addr { return addrs }
