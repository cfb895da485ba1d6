package tcp

import (
	"errors"
	"net/netip"
	"time"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/lb"
)

// ErrServerClosed is returned by Listen after Shutdown or Close.
var ErrServerClosed = errors.New("tcp server is closed")

// Server accepts and relays TCP connections. Its exported fields are set before
// the first call and not changed afterwards. LB is needed; every other zero value has
// a default. All methods may be called from any goroutine except
// those of Loops.
type Server struct {
	// Loops run the Server's connections. They must outlive it: Close the Server
	// first. nil, as it has to be on systems other than Linux: goroutines do, with the
	// same effect and at more cost (see the package comment).
	Loops *eventloop.Group

	// LB chooses backends.
	LB *lb.Balancer

	// OriginalDst returns the address that the client of an accepted socket asked
	// for. It runs on a loop and must not block. Only ListenSteered needs it.
	OriginalDst func(fd int) (netip.AddrPort, error)

	// Descriptors bounds the sockets of all connections, two for each. nil: no bound.
	Descriptors *eventloop.Budget

	// DialTimeouts is how long each attempt to reach a backend may take; its length
	// is the number of attempts. Empty: 250 ms, 500 ms, 1 s, 2 s, as kube-proxy's
	// userspace mode had it.
	DialTimeouts []time.Duration

	// MaxDials bounds the connects in flight of each loop; without Loops, of all. 0: 4,096.
	MaxDials int

	// KeepAlive is the idle time before, and the interval between, keep-alive
	// probes on both sides (tcp(7), TCP_KEEPIDLE and TCP_KEEPINTVL, whole seconds).
	// 0: 15 s. Negative: no probes.
	KeepAlive time.Duration

	// Backlog is the length of each loop's listen queue. 0: 4,096. The kernel caps it at
	// net.core.somaxconn (listen(2)). Without Loops it is the system's own.
	Backlog int

	state // of the platform
}
