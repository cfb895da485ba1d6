package udp

import (
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/socket"
)

// unprivileged is the first port that the kernel may choose for a socket (ip_local_port_range, ip(7)).
const unprivileged = 1024

// inherit takes the socket of a flow that is closed next. The socket keeps its options, and the loop goes on watching
// it, but its port is free (docs/decisions/036-udp-questions.md).
func (l *loopTransport) inherit(f *flow, backend netip.AddrPort) (left loopFlow, ok bool) {
	if f.roomy || f.choice.Backend().Addr().Is6() != backend.Addr().Is6() {
		return loopFlow{}, false
	}
	socket.Reset(f.fd)
	left = loopFlow{fd: f.fd, ttl: f.ttl, inherited: true}
	f.fd = -1
	return left, true
}

// open makes a socket, unless the flow has inherited one.
func (l *loopTransport) open(f *flow, backend netip.AddrPort) error {
	if f.inherited {
		return nil
	}
	family := backend.Addr()
	fd, err := newSocket(family)
	if err != nil {
		return err
	}
	// With the error queue the kernel also reports what it would otherwise keep
	// to itself for UDP, such as an unreachable host (ip(7), IP_RECVERR).
	if err := setOption(fd, family, unix.IP_RECVERR, unix.IPV6_RECVERR); err != nil {
		_ = unix.Close(fd)
		return err
	}
	f.fd = fd
	return nil
}

// connect keeps the descriptor, and with it the answers that wait in it.
func (l *loopTransport) connect(f *flow, to netip.AddrPort, now int64) error {
	if f.attempts > 0 {
		socket.Disconnect(f.fd)
	}
	err := socket.Connect(f.fd, to)
	if err == nil && f.inherited && !l.empty(f) {
		if err = l.replace(f, to); err == nil {
			err = socket.Connect(f.fd, to)
		}
	}
	if err != nil {
		return err
	}
	if to.Port() >= unprivileged && socket.SelfConnected(f.fd, to) { // no process listens there
		socket.Disconnect(f.fd)
		return unix.ECONNREFUSED
	}
	f.trial = now + trial
	return nil
}

// empty reports whether nothing waits in an inherited socket: no answer for the client before, and no error. It looks
// after connect(2), so that it also sees what the kernel was delivering while the port was released.
func (l *loopTransport) empty(f *flow) bool {
	_, err := socket.Recv(f.fd, l.loop.Scratch[:1])
	return err == unix.EAGAIN
}

// replace closes an inherited socket and makes a new one.
func (l *loopTransport) replace(f *flow, backend netip.AddrPort) error {
	old := f.fd
	f.inherited = false
	if err := l.open(f, backend); err != nil {
		f.inherited = true
		return err
	}
	f.ttl = 0
	return l.loop.Close(old)
}

func (l *loopTransport) watch(f *flow) error {
	f.client.Set(f.key.client)
	f.client.SetScope(f.key.scope)
	if f.inherited {
		f.inherited = false
		return nil
	}
	return l.loop.AddRead(f.fd, f)
}

func (l *loopTransport) after(f *flow, ns int64) { l.loop.After(&f.timer, f, time.Duration(ns)) }

func (l *loopTransport) close(f *flow) {
	l.loop.StopTimer(&f.timer)
	if f.fd >= 0 { // else it is inherited
		_ = l.loop.Close(f.fd)
	}
	f.fd = -1
}
