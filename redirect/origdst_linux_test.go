package redirect

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
)

// accepted returns the descriptor of an accepted connection.
func accepted(t *testing.T, network, address string, dial netip.AddrPort) syscall.RawConn {
	t.Helper()
	ln, err := net.Listen(network, address)
	check(t, err)
	defer ln.Close()
	if dial.Port() == 0 {
		dial = netip.AddrPortFrom(dial.Addr(), netip.MustParseAddrPort(ln.Addr().String()).Port())
	}
	c, err := net.DialTimeout("tcp", dial.String(), patience)
	check(t, err)
	t.Cleanup(func() { c.Close() })
	s, err := ln.Accept()
	check(t, err)
	t.Cleanup(func() { s.Close() })
	raw, err := s.(*net.TCPConn).SyscallConn()
	check(t, err)
	return raw
}

// TestOriginalDstFamilies asks on each kind of socket, and that nothing is
// allocated, since the proxy asks once per connection.
func TestOriginalDstFamilies(t *testing.T) {
	for _, c := range []struct {
		name, network, address string
		ipv6                   bool
	}{
		{"IPv4 socket", "tcp4", "0.0.0.0:40000", false},
		{"IPv4 on a dual-stack socket", "tcp", "[::]:40000", false},
		{"IPv6 socket", "tcp6", "[::]:40000", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			newLab(t)
			at := netip.AddrPortFrom(vip(c.ipv6, 1), 80)
			syncPlan(t, &IPTables{IPv6: c.ipv6}, Plan{TCPPort: 40000, TCP: []netip.AddrPort{at}})
			raw := accepted(t, c.network, c.address, at)
			raw.Control(func(fd uintptr) {
				if got, err := OriginalDst(int(fd)); got != at || err != nil {
					t.Errorf("OriginalDst = %v, %v; want %v", got, err, at)
				}
				if n := testing.AllocsPerRun(100, func() { OriginalDst(int(fd)) }); n != 0 {
					t.Errorf("OriginalDst allocates %v times", n)
				}
			})
		})
	}
}

// TestOriginalDstUnsteered is a connection that came straight here: with
// conntrack its own address, without it no answer.
func TestOriginalDstUnsteered(t *testing.T) {
	newNode(t)
	for _, tracked := range []bool{false, true} {
		for _, loopback := range []string{"127.0.0.1", "::1"} {
			if tracked {
				syncPlan(t, &IPTables{}, Plan{})
				syncPlan(t, &IPTables{IPv6: true}, Plan{})
			}
			to := netip.MustParseAddr(loopback)
			accepted(t, "tcp", ":0", netip.AddrPortFrom(to, 0)).Control(func(fd uintptr) {
				got, err := OriginalDst(int(fd))
				if tracked && (err != nil || got.Addr() != to) || !tracked && !errors.Is(err, syscall.ENOENT) {
					t.Errorf("tracked = %v: OriginalDst = %v, %v", tracked, got, err)
				}
			})
		}
	}
	if _, err := OriginalDst(-1); !errors.Is(err, syscall.EBADF) {
		t.Errorf("OriginalDst of no descriptor: %v", err)
	}
}
