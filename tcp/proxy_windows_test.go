package tcp

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/windows"
)

const hasLoops = false

// wine says whether this is not Windows itself. Its server shuts a socket down before it
// closes it (sock_destroy in server/sock.c), so that a peer sees the end of a stream
// where Windows has it see a reset.
var wine = windows.NewLazySystemDLL("ntdll.dll").NewProc("wine_get_version").Find() == nil

// WSAECONNABORTED is what a reset is called that comes before the socket is used.
func isReset(err error) bool {
	return errors.Is(err, windows.WSAECONNRESET) || errors.Is(err, windows.WSAECONNABORTED) || wine && errors.Is(err, io.EOF)
}
func isRefused(err error) bool { return errors.Is(err, windows.WSAECONNREFUSED) }
func isInUse(err error) bool {
	return errors.Is(err, windows.WSAEADDRINUSE) || errors.Is(err, windows.WSAEACCES)
}

// silent returns an address at which no connection is answered: a listener whose queue is
// full, where that is silent.
func silent(t *testing.T) netip.AddrPort {
	t.Helper()
	h, err := windows.WSASocket(windows.AF_INET, windows.SOCK_STREAM, 0, nil, 0, windows.WSA_FLAG_OVERLAPPED)
	check(t, err)
	t.Cleanup(func() { _ = windows.Closesocket(h) })
	check(t, errors.Join(windows.Bind(h, &windows.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), windows.Listen(h, 0)))
	sa, err := windows.Getsockname(h)
	check(t, err)
	addr := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(sa.(*windows.SockaddrInet4).Port))
	if err, ok := fillQueue(t, addr).(net.Error); ok && err.Timeout() {
		return addr
	}
	t.Skip("SKIPPED: this Windows refuses what does not fit a listener's queue, so that nothing on loopback is silent; wine does not")
	return addr
}

// openDescriptors returns 0: a process has no list of its handles here.
func openDescriptors(*testing.T) int { return 0 }

// lent returns nothing: buffers belong to loops.
func (p *proxy) lent() (buffers, pipes int) { return 0, 0 }
