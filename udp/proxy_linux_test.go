package udp

import (
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
)

const (
	hasLoops = true
	wine     = false
)

// block stops all loops until the function returned is called.
func (p *proxy) block() (release func()) {
	p.t.Helper()
	stop := make(chan struct{})
	var stopped sync.WaitGroup
	for _, loop := range p.Loops.Loops() {
		stopped.Add(1)
		if err := loop.Post(func() { stopped.Done(); <-stop }); err != nil {
			p.t.Fatal(err)
		}
	}
	stopped.Wait()
	return sync.OnceFunc(func() { close(stop) })
}

func openDescriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// refusing returns an address where no process listens: the socket that has the port
// takes datagrams of its peer only, which never sends.
func refusing(t *testing.T, at string) netip.AddrPort {
	t.Helper()
	local := net.UDPAddrFromAddrPort(netip.MustParseAddrPort(at))
	conn, err := net.DialUDP("udp", local, &net.UDPAddr{IP: local.IP, Port: 9})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn.LocalAddr().(*net.UDPAddr).AddrPort()
}
