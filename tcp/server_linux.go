package tcp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/counters"
	"github.com/sluice-lb/sluice/internal/session"
	"github.com/sluice-lb/sluice/internal/socket"
)

// state is what a Server has on this platform.
type state struct {
	fallback goroutineServer // serves where there are no Loops

	mu        sync.Mutex // guards the following
	closed    bool
	shards    []*shard
	listeners map[netip.AddrPort]listening

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
		return s.fallback.listen(s, addr, steered)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return netip.AddrPort{}, ErrServerClosed
	}
	s.start()
	l := listening{steered: steered}
	for _, sh := range s.shards {
		fd, err := s.bind(addr, len(l.sockets) == 0)
		if err != nil {
			l.close()
			return netip.AddrPort{}, fmt.Errorf("listen on TCP %s: %w", addr, err)
		}
		l.add(sh, fd)
		if addr, err = socket.Local(fd); err != nil {
			l.close()
			return netip.AddrPort{}, fmt.Errorf("read address of listener %s: %w", addr, err)
		}
	}
	// All are bound before the first one listens, so that either all do or none.
	for _, member := range l.sockets {
		if err := member.Start(); err != nil {
			l.close()
			return netip.AddrPort{}, fmt.Errorf("listen on TCP %s: %w", addr, err)
		}
	}
	s.listeners[addr] = l
	return addr, nil
}

// listening is the sockets of an address: one for each loop, or more after a hand-over.
type listening struct {
	steered bool // the frontend is the original destination, not the local address
	sockets []*session.Listener
}

// add adds a bound socket, which does not listen yet.
func (l *listening) add(sh *shard, fd int) {
	steered := l.steered
	l.sockets = append(l.sockets, sh.NewListener(fd, func(fd int, peer netip.AddrPort) { sh.serve(fd, peer, steered) }))
}

func (l *listening) close() {
	for _, member := range l.sockets {
		member.Close()
	}
}

// start makes the shards at the first use. The caller holds s.mu.
func (s *Server) start() {
	if s.shards != nil {
		return
	}
	s.listeners = make(map[netip.AddrPort]listening)
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
	s.fallback.unlisten(addr)
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.listeners[addr]
	l.close()
	delete(s.listeners, addr)
}

// Shutdown stops accepting and waits until every connection has ended. When ctx
// ends first, the rest is reset, and the error says how many they were.
func (s *Server) Shutdown(ctx context.Context) error {
	if s.Loops == nil {
		return s.fallback.shutdown(ctx)
	}
	s.stopListening()
	for _, sh := range s.shards {
		if err := sh.Loop.Do(func() { sh.Drain.Start(sh.Empty()) }); err != nil {
			return fmt.Errorf("drain connections: %w", err)
		}
	}
	for _, sh := range s.shards {
		select {
		case <-sh.Drain.Done():
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
	s.fallback.close()
	s.stopListening()
	for _, sh := range s.shards {
		// A loop that has stopped has nobody left to race with, but its connections
		// can no longer be reached: Loops must outlive the Server.
		_ = sh.Loop.Do(sh.AbortAll)
	}
}

func (s *Server) stopListening() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, l := range s.listeners {
		l.close()
	}
	clear(s.listeners)
}

// Stats returns the sum over all loops.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	sum := s.fallback.stats() // zero if there are loops
	for _, sh := range s.shards {
		counters.Add(&sum, &sh.count.stats)
	}
	return sum
}
