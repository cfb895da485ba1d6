package main

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/eventloop"
)

// newLoops starts the event loops.
func newLoops(n int) (*eventloop.Group, error) {
	loops, err := eventloop.NewGroup(n)
	if errors.Is(err, unix.EMFILE) {
		return nil, fmt.Errorf("%w: raise the descriptor limit (ulimit -n) to %d or more", err, enoughDescriptors(n))
	}
	return loops, err
}

// listenable returns addresses as node ports listen on them: a socket on all addresses
// knows which one a datagram was sent to.
func listenable(addrs, _ []netip.Addr) []netip.Addr { return addrs }
