package udp

import (
	"errors"
	"time"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/lb"
)

// ErrServerClosed is returned by Listen after Shutdown or Close.
var ErrServerClosed = errors.New("udp server is closed")

// Server forwards the datagrams of any number of frontends. Its exported fields
// are set before the first call and not changed afterwards. LB is needed; every other
// zero value has a default. All methods may be called from any
// goroutine except those of Loops.
type Server struct {
	// Loops run the Server's flows. They must outlive it: Close the Server first. nil, as
	// it has to be on systems other than Linux: goroutines do (see the package comment).
	Loops *eventloop.Group

	// LB chooses backends.
	LB *lb.Balancer

	// Descriptors bounds the sockets of all flows, one for each. nil: no bound.
	Descriptors *eventloop.Budget

	// IdleTimeout is how long a flow lives after its last datagram in either
	// direction. 0: 250 ms, as kube-proxy's userspace mode had it.
	IdleTimeout time.Duration

	// MaxFlows bounds the flows of each frontend. Every loop has an equal share,
	// rounded up, and at least one. 0: 16,384.
	MaxFlows int

	// SocketBuffer is how many bytes the kernel may queue at each frontend's socket,
	// each way, and at a flow's socket for replies, its own overhead included
	// (SO_RCVBUF and SO_SNDBUF, socket(7)). Without CAP_NET_ADMIN the kernel caps it
	// at net.core.rmem_max and wmem_max. 0: 4 MiB, about 5,000 small datagrams.
	SocketBuffer int

	// DisableGSO has datagrams sent one by one, and never several of equal length by one
	// send (UDP_SEGMENT, udp(7)). See CorruptsGSO.
	DisableGSO bool

	state // of the platform
}
