package udp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/socket"
	"github.com/sluice-lb/sluice/lb"
)

// state is what a Server has on this platform.
type state struct {
	plain goroutines // serve where there are no Loops

	mu        sync.Mutex // guards the following
	closed    bool
	shards    []*shard
	listeners map[lb.Frontend][]*listener // one a loop
}

// Listen starts forwarding for f what arrives at addr, with one socket for each
// loop on the same port, and returns the address in use: port 0 lets the kernel
// choose. The family of addr is that of f's clients and backends. An error wraps
// unix.EADDRINUSE if anyone, this Server included, has the port already; a
// frontend is listened for once at a time.
func (s *Server) Listen(f lb.Frontend, addr netip.AddrPort) (netip.AddrPort, error) {
	if s.Loops == nil {
		return s.plain.listen(s, f, addr)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return netip.AddrPort{}, ErrServerClosed
	}
	s.start()
	if _, ok := s.listeners[f]; ok {
		return netip.AddrPort{}, fmt.Errorf("listen on UDP %s for %s: listening already", addr, f)
	}
	group := make([]*listener, 0, len(s.shards))
	fail := func(err error) (netip.AddrPort, error) {
		s.unlisten(group)
		return netip.AddrPort{}, fmt.Errorf("listen on UDP %s for %s: %w", addr, f, err)
	}
	for _, sh := range s.shards {
		fd, err := s.bind(addr, len(group) == 0)
		if err != nil {
			return fail(err)
		}
		group = append(group, sh.newListener(f, fd))
		if addr, err = socket.Local(fd); err != nil {
			return fail(fmt.Errorf("read local address: %w", err))
		}
	}
	for _, ln := range group {
		var started error
		if err := ln.shard.loop.Do(func() { started = ln.start() }); err != nil || started != nil {
			return fail(errors.Join(err, started))
		}
	}
	s.listeners[f] = group
	return addr, nil
}

// start makes the shards at the first use. The caller holds s.mu.
func (s *Server) start() {
	if s.shards != nil {
		return
	}
	s.listeners = make(map[lb.Frontend][]*listener)
	for _, loop := range s.Loops.Loops() {
		s.shards = append(s.shards, newShard(s, loop))
	}
}

// bind makes one frontend socket. The first of a port is bound alone and only then
// opened for sharing (SO_REUSEPORT, socket(7)): with the option set before, it
// would join whoever of the same user has the port, without anyone noticing. UDP
// looks at the option of a bound socket when the next one binds. Who sets it before
// on purpose can still join us; no two Servers do.
func (s *Server) bind(addr netip.AddrPort, first bool) (fd int, err error) {
	if fd, err = socket.New(addr.Addr(), unix.SOCK_DGRAM, 0); err != nil {
		return -1, err
	}
	defer func() {
		if err != nil {
			_ = unix.Close(fd)
		}
	}()
	socket.SetReceiveBuffer(fd, s.socketBuffer())
	socket.SetSendBuffer(fd, s.socketBuffer())
	enableGRO(fd)
	level, option := unix.IPPROTO_IP, unix.IP_PKTINFO
	if addr.Addr().Is6() {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO
	}
	if err = unix.SetsockoptInt(fd, level, option, 1); err != nil {
		return fd, err
	}
	share := func() error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) }
	switch {
	case !first:
		if err = share(); err == nil {
			err = socket.Bind(fd, addr)
		}
	case len(s.shards) == 1: // nobody is to join
		err = socket.Bind(fd, addr)
	default:
		if err = socket.Bind(fd, addr); err == nil {
			err = share()
		}
	}
	return fd, err
}

// Unlisten closes the sockets and flows of a frontend. One that is not listened
// for is ignored.
func (s *Server) Unlisten(f lb.Frontend) {
	s.plain.unlisten(f)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unlisten(s.listeners[f])
	delete(s.listeners, f)
}

// unlisten closes a group, of which some may not have been started. The caller
// holds s.mu.
func (s *Server) unlisten(group []*listener) {
	for _, ln := range group {
		if err := ln.shard.loop.Do(ln.stop); err != nil {
			_ = unix.Close(ln.fd) // the loop is gone, so nobody else has it
		}
	}
}

// TableChanged has every flow leave a backend that is neither ready nor serving in
// the balancer's current table, or is no longer that of the frontend's Service. Flows whose clients send do so by themselves; this
// is for those that only receive. Call it after lb.Balancer.Update; it does not
// wait.
func (s *Server) TableChanged() {
	s.plain.tableChanged(s)
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
	if s.Loops == nil {
		return s.plain.shutdown(ctx)
	}
	s.mu.Lock()
	s.closed = true
	shards := s.shards
	s.mu.Unlock()
	defer s.Close()
	for _, sh := range shards {
		if err := sh.loop.Do(sh.startDrain); err != nil {
			return fmt.Errorf("drain flows: %w", err)
		}
	}
	for _, sh := range shards {
		select {
		case <-sh.drain.Done():
		case <-ctx.Done():
			return fmt.Errorf("drain flows: %d cut off: %w", s.Stats().Active, ctx.Err())
		}
	}
	return nil
}

// Close closes every socket and flow. It may be called more than once, also while
// Shutdown waits, which then returns.
func (s *Server) Close() {
	s.plain.close()
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
