package tcp

import (
	"errors"
	"net/netip"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/look"
)

// TestNoAllocations: a connection, from its SYN to its end, allocates nothing, though connections could be logged.
func TestNoAllocations(t *testing.T) {
	backend, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	check(t, err)
	defer unix.Close(backend)
	check(t, errors.Join(unix.Bind(backend, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(backend, 1)))
	local, err := unix.Getsockname(backend)
	check(t, err)
	p := startProxy(t, func(s *Server) { s.Log = func(*look.Ended) { t.Error("a connection is logged") } },
		netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(local.(*unix.SockaddrInet4).Port)))
	to := &unix.SockaddrInet4{Addr: p.addr.Addr().As4(), Port: int(p.addr.Port())}
	buf := make([]byte, 1)
	one := func() {
		client, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		check(t, err)
		check(t, unix.Connect(client, to))
		server, _, errno := unix.Syscall(unix.SYS_ACCEPT4, uintptr(backend), 0, 0)
		if errno != 0 {
			t.Fatal(errno)
		}
		_, err = unix.Write(client, buf)
		check(t, err)
		if n, err := unix.Read(int(server), buf); n != 1 {
			t.Fatalf("read %d bytes at the backend: %v", n, err)
		}
		check(t, unix.Close(int(server)))
		if n, err := unix.Read(client, buf); n != 0 || err != nil {
			t.Fatalf("read %d bytes at the client: %v, want the end of the stream", n, err)
		}
		check(t, unix.Close(client))
		for {
			if s := p.shards[0].count.Active.Load() + p.shards[1].count.Active.Load(); s == 0 {
				return
			}
			runtime.Gosched()
		}
	}
	for range 100 {
		one() // what is reused exists then
	}
	if n := testing.AllocsPerRun(200, one); n > 0 {
		t.Errorf("a connection allocates %v times", n)
	}
}
