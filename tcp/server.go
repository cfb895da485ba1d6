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

// Stats is a snapshot of a Server's counters since it started, and of two gauges.
// Counters of different loops are read one after the other, so sums of them may
// be a few events apart.
type Stats struct {
	Active   int64 // connections now, dialling ones included (gauge)
	Dialling int64 // connections whose backend has not answered yet (gauge)

	Accepted     uint64 // connections accepted
	NoService    uint64 // reset: no Service has the address asked for
	NoBackend    uint64 // reset: the Service has no backend
	NoLocal      uint64 // reset: the Service has none on this node, and policy Local
	NotAllowed   uint64 // reset: the client is not among the sources of the address
	Dials        uint64 // attempts to connect to a backend
	DialRefused  uint64 // attempts that failed with an answer
	DialTimedOut uint64 // attempts that nobody answered in time
	DialGaveUp   uint64 // connections reset because every attempt failed
	Established  uint64 // connections whose backend answered

	ClientResets  uint64 // relays ended by an error on the client's side
	BackendResets uint64 // relays ended by an error on the backend's side
	BytesIn       uint64 // bytes from clients to backends
	BytesOut      uint64 // bytes from backends to clients

	PausedDescriptors uint64 // accepting paused: no descriptor left
	PausedDials       uint64 // accepting paused: MaxDials reached
	AcceptErrors      uint64 // accept(2) failed otherwise
	Shortages         uint64 // a dial waited for a local resource: descriptors, ports, memory
}
