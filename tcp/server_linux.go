package tcp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/socket"
)

// state is what a Server has on this platform.
type state struct {
	plain goroutines // serve where there are no Loops

	mu        sync.Mutex // guards the following
	closed    bool
	shards    []*shard
	listeners map[netip.AddrPort][]*listener // one a loop, or more of another process

	offers uint32 // made since the last Thaw; of the goroutine that calls Offer
}

// Listen starts accepting on addr, which is what clients ask for: the frontend of
// a connection is the local address of its socket. There is one listening socket
// for each loop on the same port. It returns the address in use: port 0 lets the
// kernel choose. An error wraps unix.EADDRINUSE if anyone, this Server included,
// listens there already.
func (s *Server) Listen(addr netip.AddrPort) (netip.AddrPort, error) { return s.listen(addr, false) }

// ListenSteered is Listen for an address that traffic for any frontends is steered
// to: Server.OriginalDst says what the client of a connection asked for.
func (s *Server) ListenSteered(addr netip.AddrPort) (netip.AddrPort, error) {
	return s.listen(addr, true)
}

func (s *Server) listen(addr netip.AddrPort, steered bool) (netip.AddrPort, error) {
	if s.Loops == nil {
		return s.plain.listen(s, addr, steered)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return netip.AddrPort{}, ErrServerClosed
	}
	s.start()
	group := make([]*listener, 0, len(s.shards))
	for _, sh := range s.shards {
		fd, err := s.bind(addr, len(group) == 0)
		if err != nil {
			s.unlisten(group)
			return netip.AddrPort{}, fmt.Errorf("listen on TCP %s: %w", addr, err)
		}
		group = append(group, &listener{sh: sh, fd: fd, steered: steered})
		if addr, err = socket.Local(fd); err != nil {
			s.unlisten(group)
			return netip.AddrPort{}, fmt.Errorf("read address of listener %s: %w", addr, err)
		}
	}
	// All are bound before the first one listens, so that either all do or none.
	for _, l := range group {
		if err := l.start(s.backlog()); err != nil {
			s.unlisten(group)
			return netip.AddrPort{}, fmt.Errorf("listen on TCP %s: %w", addr, err)
		}
	}
	s.listeners[addr] = group
	return addr, nil
}

// start makes the shards at the first use. The caller holds s.mu.
func (s *Server) start() {
	if s.shards != nil {
		return
	}
	s.listeners = make(map[netip.AddrPort][]*listener)
	for _, loop := range s.Loops.Loops() {
		s.shards = append(s.shards, newShard(s, loop))
	}
}

// bind makes one listening socket's socket. The first of a port is bound alone and
// only then opened for sharing (SO_REUSEPORT, socket(7)): otherwise a second
// process of the same user would share our port without anyone noticing. Options
// that accepted sockets inherit are set here, once.
func (s *Server) bind(addr netip.AddrPort, first bool) (fd int, err error) {
	if fd, err = socket.New(addr.Addr(), unix.SOCK_STREAM, 0); err != nil {
		return -1, err
	}
	defer func() {
		if err != nil {
			_ = unix.Close(fd)
		}
	}()
	if err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return -1, err
	}
	if err = s.streamOptions(fd); err != nil {
		return -1, err
	}
	share := func() error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) }
	bind := func() error { return socket.Bind(fd, addr) }
	if first {
		return fd, errors.Join(bind(), share())
	}
	return fd, errors.Join(share(), bind())
}

// streamOptions sets what accepted sockets have from the start, since it costs
// nothing there: no Nagle delay, as we pass on what others have already packed, and
// keep-alive probes. Sockets to backends get both when they have lived for a while.
func (s *Server) streamOptions(fd int) error {
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return err
	}
	return s.probe(fd)
}

// probe has the kernel send keep-alive probes.
func (s *Server) probe(fd int) error {
	if s.keepAlive() < 0 {
		return nil
	}
	seconds := max(1, int(s.keepAlive().Seconds()))
	return errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1),
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, seconds),
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, seconds),
	)
}

// Unlisten stops accepting on an address that Listen returned. Connections that
// the kernel has completed are still taken; established ones go on. Unknown
// addresses are ignored.
func (s *Server) Unlisten(addr netip.AddrPort) {
	s.plain.unlisten(addr)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unlisten(s.listeners[addr])
	delete(s.listeners, addr)
}

// unlisten closes a group, of which some may not have been started. The caller holds s.mu.
func (s *Server) unlisten(group []*listener) {
	for _, l := range group {
		if err := l.sh.loop.Do(l.stop); err != nil {
			_ = unix.Close(l.fd) // the loop is gone, so nobody else has it
		}
	}
}

// Shutdown stops accepting and waits until every connection has ended. When ctx
// ends first, the rest is reset, and the error says how many they were.
func (s *Server) Shutdown(ctx context.Context) error {
	if s.Loops == nil {
		return s.plain.shutdown(ctx)
	}
	s.stopListening()
	for _, sh := range s.shards {
		if err := sh.loop.Do(sh.drain); err != nil {
			return fmt.Errorf("drain connections: %w", err)
		}
	}
	for _, sh := range s.shards {
		select {
		case <-sh.drained:
		case <-ctx.Done():
			left := s.Stats().Active
			s.Close()
			return fmt.Errorf("drain connections: %d reset: %w", left, ctx.Err())
		}
	}
	return nil
}

// Close stops accepting and resets every connection. It may be called more than
// once, also while Shutdown waits.
func (s *Server) Close() {
	s.plain.close()
	s.stopListening()
	for _, sh := range s.shards {
		// A loop that has stopped has nobody left to race with, but its connections
		// can no longer be reached: Loops must outlive the Server.
		_ = sh.loop.Do(sh.abortAll)
	}
}

func (s *Server) stopListening() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, group := range s.listeners {
		s.unlisten(group)
	}
	clear(s.listeners)
}

// Stats returns the sum over all loops.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	sum := s.plain.count.snapshot() // zero if there are loops
	for _, sh := range s.shards {
		sh.count.addTo(&sum)
	}
	return sum
}

// shard is the part of a Server that lives on one loop.
type shard struct {
	srv     *Server
	loop    *eventloop.Loop
	conns   conn                   // head of the list of connections
	fresh   *conn                  // the oldest connection that is not settled: all before it are; the head: there is none
	open    map[*listener]struct{} // listeners of this loop
	retry   eventloop.Timer        // runs while accepting is paused
	settle  eventloop.Timer        // runs while a connection is not settled
	dials   []*dial                // free ones
	drained chan struct{}          // closed when draining has come to its end; nil before
	count   counters
}

func newShard(s *Server, loop *eventloop.Loop) *shard {
	sh := &shard{srv: s, loop: loop, open: make(map[*listener]struct{})}
	sh.conns.next, sh.conns.prev, sh.fresh = &sh.conns, &sh.conns, &sh.conns
	if s.Descriptors != nil {
		// Set before the loop sees its first connection: Listen's Do orders the two.
		loop.Pipes().Budget = s.Descriptors
	}
	return sh
}

const (
	// settleAfter is how long a connection has to live before its backend's socket is made
	// ready for a long life. Short ones, which are over by then, save three system calls.
	settleAfter = time.Second

	// settleTurn is how many connections are settled before the descriptors of their loop
	// have their turn.
	settleTurn = 64
)

// settleSome has the kernel probe the backends of the oldest connections that it does
// not probe yet, and comes back soon if there are more.
func (sh *shard) settleSome() {
	for range settleTurn {
		if sh.fresh == &sh.conns {
			return
		}
		sh.fresh.settle()
		sh.fresh = sh.fresh.next
	}
	sh.loop.After(&sh.settle, sh, 0)
}

// insert puts c at the end of the list of connections.
func (sh *shard) insert(c *conn) {
	c.prev, c.next = sh.conns.prev, &sh.conns
	c.prev.next, c.next.prev = c, c
	if !c.settled && sh.fresh == &sh.conns {
		sh.fresh = c
	}
}

// remove takes c out of the list of connections.
func (sh *shard) remove(c *conn) {
	if sh.fresh == c {
		sh.fresh = c.next
	}
	c.prev.next, c.next.prev = c.next, c.prev
	c.next, c.prev = nil, nil
}

func (sh *shard) drain() {
	if sh.drained == nil {
		sh.drained = make(chan struct{})
		sh.checkDrained()
	}
}

// checkDrained tells Shutdown that the last connection has ended.
func (sh *shard) checkDrained() {
	if sh.drained == nil || sh.conns.next != &sh.conns {
		return
	}
	select {
	case <-sh.drained:
	default:
		close(sh.drained)
	}
}

func (sh *shard) abortAll() {
	for sh.conns.next != &sh.conns {
		sh.conns.next.abort()
	}
}
