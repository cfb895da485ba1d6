package socket

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/testbed"
)

var check = testbed.Check

func TestNameRoundTrip(t *testing.T) {
	for _, want := range []string{"192.0.2.7:53", "[2001:db8::1]:65535", "0.0.0.0:1", "[::]:0"} {
		var n Name
		n.Set(netip.MustParseAddrPort(want))
		if got := n.AddrPort().String(); got != want {
			t.Errorf("Set then AddrPort = %s, want %s", got, want)
		}
	}
	var n Name
	n.Set(netip.MustParseAddrPort("[::ffff:192.0.2.7]:9"))
	if got := n.AddrPort().String(); got != "192.0.2.7:9" {
		t.Errorf("mapped address = %s, want it as IPv4", got)
	}
	if got := new(Name).AddrPort(); got.IsValid() {
		t.Errorf("zero Name = %s, want no address", got)
	}
}

// dialled returns a connected client and the listener it waits on.
func dialled(t *testing.T, addr string) (client, listener int) {
	t.Helper()
	at := netip.MustParseAddrPort(addr)
	open := func() int {
		fd, err := New(at.Addr(), unix.SOCK_STREAM, 0)
		check(t, err)
		t.Cleanup(func() { _ = unix.Close(fd) })
		return fd
	}
	client, listener = open(), open()
	check(t, Bind(listener, at))
	check(t, unix.Listen(listener, 8))
	bound, err := Local(listener)
	check(t, err)
	if err := Connect(client, bound); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		t.Fatal(err)
	}
	return client, listener
}

// connected returns both ends of a connection, the peer's address as Accept says it, and
// the listener. The caller closes fd.
func connected(t *testing.T, addr string) (client, fd int, peer netip.AddrPort, listener int) {
	t.Helper()
	client, listener = dialled(t, addr)
	fd, peer, err := Accept(listener)
	check(t, err)
	return client, fd, peer, listener
}

func TestConnectAccept(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0"} {
		client, fd, peer, listener := connected(t, addr)
		defer func() { _ = unix.Close(fd) }()
		if want, _ := Local(client); peer != want {
			t.Errorf("Accept says the client is %s, it is %s", peer, want)
		}
		bound, _ := Local(listener)
		if err := Connect(client, bound); err != nil && !errors.Is(err, unix.EISCONN) {
			t.Errorf("Connect of a connected socket = %v, want nil or EISCONN", err)
		}
	}
}

func TestConnectRefused(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	check(t, err)
	gone := netip.MustParseAddrPort(l.Addr().String())
	check(t, l.Close())
	fd, err := New(gone.Addr(), unix.SOCK_STREAM, 0)
	check(t, err)
	defer func() { _ = unix.Close(fd) }()
	if err := Connect(fd, gone); err != unix.EINPROGRESS {
		t.Fatalf("first Connect = %v, want EINPROGRESS", err)
	}
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, 5000); n != 1 {
		t.Fatalf("poll = %d, %v; want the end of the attempt", n, err)
	}
	if err := Connect(fd, gone); err != unix.ECONNREFUSED {
		t.Errorf("Connect after the refusal = %v, want ECONNREFUSED", err)
	}
}

// TestReset: the peer sees it, of Reset although the descriptor stays open.
func TestReset(t *testing.T) {
	for _, name := range []string{"Reset", "ResetOnClose"} {
		client, fd, _, _ := connected(t, "127.0.0.1:0")
		if name == "Reset" {
			Reset(fd)
			defer func() { _ = unix.Close(fd) }()
		} else {
			ResetOnClose(fd)
			_ = unix.Close(fd)
		}
		if _, err := unix.Read(client, make([]byte, 1)); err != unix.ECONNRESET {
			t.Errorf("%s: read after the peer's reset = %v, want ECONNRESET", name, err)
		}
	}
}

func TestNoAllocation(t *testing.T) {
	client, fd, peer, listener := connected(t, "127.0.0.1:0")
	defer func() { _ = unix.Close(fd) }()
	if n := testing.AllocsPerRun(100, func() {
		_, _, _ = Accept(listener)
		_ = Connect(client, peer)
		_, _ = Local(fd)
		_, _ = TCP(fd)
	}); n != 0 {
		t.Errorf("Accept, Connect, Local and TCP allocate %v times a run, want 0", n)
	}
}
