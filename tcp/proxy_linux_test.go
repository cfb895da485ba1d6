package tcp

import (
	"errors"
	"net/netip"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

const (
	hasLoops = true
	wine     = false
)

func isReset(err error) bool   { return errors.Is(err, unix.ECONNRESET) }
func isRefused(err error) bool { return errors.Is(err, unix.ECONNREFUSED) }
func isInUse(err error) bool   { return errors.Is(err, unix.EADDRINUSE) }

// lent returns how many buffers and pipes connections hold.
func (p *proxy) lent() (buffers, pipes int) {
	for _, l := range p.Loops.Loops() {
		check(p.t, l.Do(func() {
			buffers += l.Buffers.Lent()
			pipes += l.Pipes.Lent()
		}))
	}
	return buffers, pipes
}

// block stops all loops until the function returned is called.
func (p *proxy) block() (release func()) {
	p.t.Helper()
	stop := make(chan struct{})
	var stopped sync.WaitGroup
	for _, loop := range p.Loops.Loops() {
		stopped.Add(1)
		check(p.t, loop.Post(func() { stopped.Done(); <-stop }))
	}
	stopped.Wait()
	return sync.OnceFunc(func() { close(stop) })
}

// silent returns an address that drops every SYN: a listener whose queue is full
// (listen(2), tcp_abort_on_overflow = 0).
func silent(t *testing.T) netip.AddrPort {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	check(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	check(t, errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(fd, 0)))
	sa, err := unix.Getsockname(fd)
	check(t, err)
	addr := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(sa.(*unix.SockaddrInet4).Port))
	if fillQueue(t, addr) == nil {
		t.Fatal("the listener's queue does not fill up")
	}
	return addr
}

func openDescriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	check(t, err)
	return len(entries)
}
