package udp

import (
	"context"
	"errors"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/socket"
	"github.com/sluice-lb/sluice/lb"
)

// state is what a Server has on this platform.
type state struct {
	plain goroutines // serve where there are no Loops
	loops
}

func (s *Server) mover() mover {
	if s.Loops == nil {
		return &s.plain
	}
	return &s.loops
}

// loops moves the datagrams of a Server by event loops.
type loops struct {
	mu        sync.Mutex // guards the following
	closed    bool
	shards    []*shard                    // one a loop; none before the first use
	listeners map[lb.Frontend][]*listener // one a loop
}

// listen opens a socket for each loop, on the same port.
func (l *loops) listen(s *Server, f lb.Frontend, addr netip.AddrPort) (netip.AddrPort, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return netip.AddrPort{}, ErrServerClosed
	}
	l.start(s)
	if _, ok := l.listeners[f]; ok {
		return netip.AddrPort{}, errListening
	}
	group := make([]*listener, 0, len(l.shards))
	for _, sh := range l.shards {
		fd, err := l.bind(s, addr, len(group) == 0)
		if err == nil {
			group = append(group, sh.newListener(f, fd))
			addr, err = socket.Local(fd)
		}
		if err != nil {
			closeAll(group)
			return netip.AddrPort{}, err
		}
	}
	for _, ln := range group {
		var started error
		if err := ln.shard.loop.Do(func() { started = ln.start() }); err != nil || started != nil {
			closeAll(group)
			return netip.AddrPort{}, errors.Join(err, started)
		}
	}
	l.listeners[f] = group
	return addr, nil
}

// start makes the shards at the first use. The caller holds l.mu.
func (l *loops) start(s *Server) {
	if l.shards != nil {
		return
	}
	l.listeners = make(map[lb.Frontend][]*listener)
	for _, loop := range s.Loops.Loops() {
		l.shards = append(l.shards, newShard(s, loop))
	}
}

// bind makes one frontend socket. The first of a port is bound alone and only then
// opened for sharing (SO_REUSEPORT, socket(7)): with the option set before, it
// would join another process of the same user that has the port, unnoticed. UDP
// looks at the option of a bound socket when the next one binds. A process that sets it before
// on purpose can still join us; no two Servers do.
func (l *loops) bind(s *Server, addr netip.AddrPort, first bool) (fd int, err error) {
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
	case len(l.shards) == 1: // it is not shared
		err = socket.Bind(fd, addr)
	default:
		if err = socket.Bind(fd, addr); err == nil {
			err = share()
		}
	}
	return fd, err
}

// unlisten closes the sockets and flows of a frontend.
func (l *loops) unlisten(f lb.Frontend) {
	l.mu.Lock()
	defer l.mu.Unlock()
	closeAll(l.listeners[f])
	delete(l.listeners, f)
}

// closeAll closes listeners, of which some may not have been started.
func closeAll(group []*listener) {
	for _, ln := range group {
		if err := ln.shard.loop.Do(ln.stop); err != nil {
			_ = unix.Close(ln.fd) // the loop has ended
		}
	}
}

// tableChanged lets every loop look for flows that have to leave.
func (l *loops) tableChanged(*Server) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, sh := range l.shards {
		sh.scheduleScan()
	}
}

// drain refuses new clients and waits until every flow is idle.
func (l *loops) drain(ctx context.Context) error {
	l.mu.Lock()
	l.closed = true
	shards := l.shards
	l.mu.Unlock()
	for _, sh := range shards {
		if err := sh.loop.Do(sh.startDrain); err != nil {
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

func (l *loops) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for _, group := range l.listeners {
		closeAll(group)
	}
	clear(l.listeners)
}

func (l *loops) addTo(sum *Stats) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, sh := range l.shards {
		sh.count.addTo(sum)
	}
}
