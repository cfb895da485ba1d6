package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/eventloop"
)

// spareProcessor has Go use a processor more than the loops take, from the start, since more than
// loops profit. Each loop keeps one, asleep or not; were there no other, the runtime's monitor
// would take one away whenever its loop sleeps for 20 us, and a lone client would wait for its
// return three times; and a change, or the collector, would have a loop wait for up to 10 ms,
// where the kernel divides the core more finely (bench/results/profiles.md). GOMAXPROCS in the
// environment goes before it.
func spareProcessor(loops int) {
	if os.Getenv("GOMAXPROCS") == "" && runtime.GOMAXPROCS(0) <= loops {
		runtime.GOMAXPROCS(loops + 1)
	}
}

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
