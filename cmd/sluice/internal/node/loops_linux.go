package node

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/eventloop"
)

// SpareProcessor makes Go use a processor more than the loops take, from the start, since more
// than loops profit. Each loop keeps one, asleep or not; were there no other, the runtime's
// monitor would take one away whenever its loop sleeps for 20 us, and a lone client would wait
// for its return three times; and a change, or the collector, would make a loop wait for up to
// 10 ms, where the kernel divides the core more finely (bench/results/profiles.md). GOMAXPROCS
// in the environment takes precedence.
func SpareProcessor(loops int) {
	if os.Getenv("GOMAXPROCS") == "" && runtime.GOMAXPROCS(0) <= loops {
		runtime.GOMAXPROCS(loops + 1)
	}
}

// NewLoops starts n event loops. The caller closes them.
func NewLoops(n int) (*eventloop.Group, error) {
	loops, err := eventloop.NewGroup(n)
	if errors.Is(err, unix.EMFILE) {
		return nil, fmt.Errorf("%w: raise the file descriptor limit (ulimit -n) to %d or more", err, enoughFiles(n))
	}
	return loops, err
}

// Listenable returns addresses as node ports listen on them: a socket on all addresses
// knows which one a datagram was sent to.
func Listenable(addrs, _ []netip.Addr) []netip.Addr { return addrs }
