package udp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/sluice-lb/sluice/internal/counters"
	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/look"
	"github.com/sluice-lb/sluice/internal/shares"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

// ErrServerClosed is returned by Listen after Shutdown or Close.
var ErrServerClosed = errors.New("udp server is closed")

var errListening = errors.New("listening already")

// Server forwards the datagrams of any number of frontends. Its exported fields
// are set before the first call. LB is needed; every other zero value has a default. All
// methods may be called from any goroutine except those of Loops.
type Server struct {
	// Loops run the Server's flows. They must outlive it: Close the Server first. nil, as
	// it has to be on systems other than Linux: goroutines do (see the package comment).
	Loops *eventloop.Group

	// LB chooses backends.
	LB *balancer.Balancer

	// Descriptors bounds the sockets of all flows, one for each, of frontends, and of others. nil: no bound.
	Descriptors *eventloop.Budget

	// IdleTimeout is how long a flow lives after its last datagram in either direction. 0: a client's socket stays with
	// its backend as long as with conntrack, 30 s, and 120 s once there was more than one exchange (see the package
	// comment).
	IdleTimeout time.Duration

	// MaxFlows bounds all flows, each of which takes an ephemeral port of the host. Every loop has an
	// equal part, and at least one. Descriptors bounds them, too, to half of its Limit. 0: 16,384.
	MaxFlows int

	// Shares are the part of all flows that one Service, and one client address, may have while no other has any. At a
	// bound flows make room for others.
	Shares shares.Shares

	// Log gets flows that have ended, as Policies.AccessLog requests it, where the flow was. It must not wait. nil:
	// nothing is logged. LogSample has one of so many be logged; 0: all.
	Log       func(*look.Ended)
	LogSample int

	// SocketBuffer is how many bytes the kernel may queue at each frontend's socket,
	// each way, and at a flow's socket for replies, its own overhead included
	// (SO_RCVBUF and SO_SNDBUF, socket(7)). Without CAP_NET_ADMIN the kernel caps it
	// at net.core.rmem_max and wmem_max. 0: 4 MiB, about 5,000 small datagrams.
	SocketBuffer int

	// DisableGSO has datagrams sent one by one, and never several of equal length by one
	// send (UDP_SEGMENT, udp(7)). See AvoidGSO.
	DisableGSO bool

	mu        sync.Mutex // guards the following
	closed    bool
	shards    []*shard                    // one a loop; none before the first use
	listeners map[lb.Frontend][]*listener // one a shard, or one in all where descriptors are few
	moved     map[lb.Frontend][]*listener // those before a Move, until they are settled
	next      int                         // shard of the next one that is alone
}

func (s *Server) maxFlows() int     { return cmp.Or(s.MaxFlows, 16384) }
func (s *Server) socketBuffer() int { return cmp.Or(s.SocketBuffer, 4<<20) }

// start makes the shards at the first use. The caller holds s.mu.
func (s *Server) start() {
	if s.shards == nil {
		s.shards, s.listeners = newShards(s), make(map[lb.Frontend][]*listener)
		s.moved = make(map[lb.Frontend][]*listener)
	}
}

// Listen starts forwarding for f what arrives at addr and returns the address in use: port 0
// lets the system choose. The family of addr is that of f's clients and backends. On Linux an
// error wraps unix.EADDRINUSE if another socket, of this Server too, has the port already; a
// frontend is listened for once at a time.
func (s *Server) Listen(f lb.Frontend, addr netip.AddrPort) (netip.AddrPort, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.listenAt(f, addr)
}

// listenAt is Listen for a caller who holds s.mu.
func (s *Server) listenAt(f lb.Frontend, addr netip.AddrPort) (netip.AddrPort, error) {
	if s.closed {
		return netip.AddrPort{}, ErrServerClosed
	}
	s.start()
	got, err := s.listen(f, addr)
	if err != nil {
		err = fmt.Errorf("listen on UDP %s for %s: %w", addr, f, err)
	}
	return got, err
}

// listen opens a socket for each shard, on the same port, or for one of them. The caller holds s.mu.
func (s *Server) listen(f lb.Frontend, addr netip.AddrPort) (_ netip.AddrPort, err error) {
	if _, ok := s.listeners[f]; ok {
		return netip.AddrPort{}, errListening
	}
	sockets, err := s.Descriptors.Listen(int64(len(s.shards)))
	if err != nil {
		return netip.AddrPort{}, err
	}
	var group []*listener
	defer func() {
		if err != nil {
			stopAll(group)
			s.Descriptors.Listening(-sockets)
		}
	}()
	for _, sh := range s.members(int(sockets)) {
		ln := sh.newListener(f)
		if addr, err = sh.io.bind(ln, addr, len(group) == 0); err != nil {
			return netip.AddrPort{}, err
		}
		group = append(group, ln)
	}
	for _, ln := range group {
		if err = ln.start(); err != nil {
			return netip.AddrPort{}, err
		}
	}
	s.listeners[f] = group
	return addr, nil
}

// members returns the shards of so many sockets of a frontend: for fewer than there are shards those whose turn it is.
func (s *Server) members(sockets int) []*shard {
	if sockets == len(s.shards) {
		return s.shards
	}
	out := make([]*shard, sockets)
	for i := range out {
		out[i] = s.shards[(s.next+i)%len(s.shards)]
	}
	if sockets < len(s.shards) {
		s.next += sockets
	}
	return out
}

// stop closes listeners that have been started, and their flows.
func (s *Server) stop(group []*listener) {
	stopAll(group)
	s.Descriptors.Listening(-int64(len(group)))
}

// stopAll closes listeners, of which some may not have been started, and their flows.
func stopAll(group []*listener) {
	for _, ln := range group {
		ln.shard.io.stop(ln)
	}
}

// Unlisten closes the sockets and flows of a frontend. One that is not listened
// for is ignored.
func (s *Server) Unlisten(f lb.Frontend) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle(f)
	s.stop(s.listeners[f])
	delete(s.listeners, f)
}

// TableChanged makes every flow leave a backend that is neither ready nor serving in
// the balancer's current table, or is no longer that of the frontend's Service, also if its
// client only receives. Call it after balancer.Balancer.Update. With Loops it does not wait.
func (s *Server) TableChanged() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sh := range s.shards {
		sh.scheduleScan()
	}
}

// Shutdown refuses new clients and waits until every flow is idle. When ctx ends
// first, the rest is cut off and the error says how many they were. In any case
// the Server is closed in the end.
func (s *Server) Shutdown(ctx context.Context) error {
	defer s.Close()
	if err := s.drain(ctx); err != nil {
		return fmt.Errorf("drain flows: %d cut off: %w", s.Stats().Active, err)
	}
	return nil
}

func (s *Server) drain(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	shards := s.shards
	s.mu.Unlock()
	for _, sh := range shards {
		if err := sh.io.do(sh.startDrain); err != nil {
			return err
		}
	}
	for _, sh := range shards {
		if err := sh.drain.Wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Close closes every socket and flow. It may be called more than once, also while
// Shutdown waits, which then returns.
func (s *Server) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, groups := range []map[lb.Frontend][]*listener{s.listeners, s.moved} {
		for _, group := range groups {
			s.stop(group)
		}
		clear(groups)
	}
}

// Stats returns the sum over all loops.
func (s *Server) Stats() (sum Stats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sh := range s.shards {
		counters.Add(&sum, &sh.count.stats)
	}
	return sum
}
