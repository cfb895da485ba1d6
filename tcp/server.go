package tcp

import (
	"context"
	"errors"
	"fmt"
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

// engine moves the connections of a Server: by event loops, or by goroutines.
type engine interface {
	listen(s *Server, addr netip.AddrPort, steered bool) (netip.AddrPort, error)
	unlisten(addr netip.AddrPort)
	steered() []netip.AddrPort
	drain(ctx context.Context) error
	close()
	addTo(sum *Stats)
}

// Listen starts accepting on addr, which is what clients ask for: the frontend of
// a connection is the local address of its socket. With Loops there is one listening socket
// for each of them on the same port. It returns the address in use: port 0 lets the
// system choose. On Linux an error wraps unix.EADDRINUSE if another process, or this Server,
// listens there already.
func (s *Server) Listen(addr netip.AddrPort) (netip.AddrPort, error) { return s.listen(addr, false) }

// ListenSteered is Listen for an address that traffic for any frontends is steered
// to: Server.OriginalDst says what the client of a connection asked for.
func (s *Server) ListenSteered(addr netip.AddrPort) (netip.AddrPort, error) {
	return s.listen(addr, true)
}

func (s *Server) listen(addr netip.AddrPort, steered bool) (netip.AddrPort, error) {
	got, err := s.engine().listen(s, addr, steered)
	if err != nil && err != ErrServerClosed {
		err = fmt.Errorf("listen on TCP %s: %w", addr, err)
	}
	return got, err
}

// Steered returns the addresses of ListenSteered, in no order.
func (s *Server) Steered() []netip.AddrPort { return s.engine().steered() }

// Unlisten stops accepting on an address that Listen returned. With Loops, connections that
// the kernel has completed are still accepted; established ones go on. Unknown
// addresses are ignored.
func (s *Server) Unlisten(addr netip.AddrPort) { s.engine().unlisten(addr) }

// Shutdown stops accepting and waits until every connection has ended. When ctx
// ends first, the rest is reset, and the error says how many they were.
func (s *Server) Shutdown(ctx context.Context) error {
	defer s.Close()
	if err := s.engine().drain(ctx); err != nil {
		return fmt.Errorf("drain connections: %d reset: %w", s.Stats().Active, err)
	}
	return nil
}

// Close stops accepting and resets every connection. It may be called more than
// once, also while Shutdown waits.
func (s *Server) Close() { s.engine().close() }

// Stats returns the sum over all loops.
func (s *Server) Stats() (sum Stats) {
	s.engine().addTo(&sum)
	return sum
}
