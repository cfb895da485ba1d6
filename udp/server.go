package udp

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
var ErrServerClosed = errors.New("udp server is closed")

var errListening = errors.New("listening already")

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

// mover moves the datagrams of a Server, by event loops or by goroutines.
type mover interface {
	listen(s *Server, f lb.Frontend, addr netip.AddrPort) (netip.AddrPort, error)
	unlisten(f lb.Frontend)
	tableChanged(s *Server)
	drain(ctx context.Context) error
	close()
	addTo(sum *Stats)
}

// Listen starts forwarding for f what arrives at addr and returns the address in use: port 0
// lets the system choose. The family of addr is that of f's clients and backends. On Linux an
// error wraps unix.EADDRINUSE if another socket, of this Server too, has the port already; a
// frontend is listened for once at a time.
func (s *Server) Listen(f lb.Frontend, addr netip.AddrPort) (netip.AddrPort, error) {
	got, err := s.mover().listen(s, f, addr)
	if err != nil && err != ErrServerClosed {
		err = fmt.Errorf("listen on UDP %s for %s: %w", addr, f, err)
	}
	return got, err
}

// Unlisten closes the sockets and flows of a frontend. One that is not listened
// for is ignored.
func (s *Server) Unlisten(f lb.Frontend) { s.mover().unlisten(f) }

// TableChanged makes every flow leave a backend that is neither ready nor serving in
// the balancer's current table, or is no longer that of the frontend's Service. Flows
// whose clients send do so by themselves; this is for those that only receive. Call it
// after lb.Balancer.Update. With Loops it does not wait.
func (s *Server) TableChanged() { s.mover().tableChanged(s) }

// Shutdown refuses new clients and waits until every flow is idle. When ctx ends
// first, the rest is cut off and the error says how many they were. In any case
// the Server is closed in the end.
func (s *Server) Shutdown(ctx context.Context) error {
	defer s.Close()
	if err := s.mover().drain(ctx); err != nil {
		return fmt.Errorf("drain flows: %d cut off: %w", s.Stats().Active, err)
	}
	return nil
}

// Close closes every socket and flow. It may be called more than once, also while
// Shutdown waits, which then returns.
func (s *Server) Close() { s.mover().close() }

// Stats returns the sum over all loops.
func (s *Server) Stats() (sum Stats) {
	s.mover().addTo(&sum)
	return sum
}
