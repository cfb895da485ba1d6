package tcp

import (
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// TestServedInOrder: connections in use that become ready while their loop is busy, more than it takes from the kernel
// at a time, are served in the order in which they became so. A backend's epoll tells: it reports first what came first.
func TestServedInOrder(t *testing.T) {
	const (
		clients = 300
		trips   = youth + 2 // no event is deferred behind so many
		word    = 2
	)
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	check(t, err)
	defer unix.Close(epoll)
	ready, end := make(chan error, clients), make(chan struct{})
	p := newProxy(t, 1)
	p.serve(backend(t, func(c *net.TCPConn) {
		_, err := io.CopyN(c, struct{ io.Reader }{c}, trips)
		ready <- errors.Join(err, watch(epoll, c))
		<-end
	}))
	defer close(end)
	p.addr, err = p.ListenSteered(netip.MustParseAddrPort("127.0.0.1:0"))
	check(t, err)
	conns := make([]*net.TCPConn, clients)
	for i := range conns {
		conns[i] = p.dial()
		for range trips {
			exchange(t, conns[i])
		}
		check(t, <-ready)
	}

	before := p.Stats().BytesIn
	release := p.block()
	defer release()
	order := rand.Perm(clients)
	for _, i := range order {
		_, err := conns[i].Write(binary.NativeEndian.AppendUint16(nil, uint16(i)))
		check(t, err)
	}
	release()
	p.eventually("all is passed on", func(s Stats) bool { return s.BytesIn-before == clients*word })
	var events [clients]unix.EpollEvent
	n, err := unix.EpollWait(epoll, events[:], 0)
	check(t, err)
	var got []int
	for _, e := range events[:n] {
		b := make([]byte, word)
		if n, err := unix.Read(int(e.Fd), b); n < word {
			t.Fatalf("a backend has read %d bytes, %v", n, err)
		}
		got = append(got, int(binary.NativeEndian.Uint16(b)))
	}
	if !slices.Equal(got, order) {
		t.Errorf("served in the order\n%v, want\n%v", got, order)
	}
}

// watch has an epoll instance report that c is readable.
func watch(epoll int, c *net.TCPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	controlErr := raw.Control(func(fd uintptr) {
		err = unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, int(fd), &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
	})
	return errors.Join(controlErr, err)
}
