package udp

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"
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

// onLoop runs fn on the loop of a shard.
func onLoop(t *testing.T, sh *shard, fn func()) {
	t.Helper()
	if err := sh.loop.Do(fn); err != nil {
		t.Fatal(err)
	}
}

// inOrder reads what flows have sent, "flow number" each, and wants all numbers of a flow in order and
// from one socket, unless it was refused elsewhere. It returns the last sender of each.
func (b *backend) inOrder(t *testing.T, p *proxy, flows, each int) []netip.AddrPort {
	t.Helper()
	next, from := make([]int, flows), make([]netip.AddrPort, flows)
	buf := make([]byte, 100)
	for left := flows * each; left > 0; {
		_ = b.SetReadDeadline(time.Now().Add(patience))
		n, sender, err := b.ReadFromUDPAddrPort(buf)
		if err != nil {
			t.Fatalf("%v, with %d to come; stats = %+v", err, left, p.Stats())
		}
		if n == 0 {
			continue // a filler
		}
		var i, j int
		if _, err := fmt.Sscanf(string(buf[:n]), "%d %d", &i, &j); err != nil {
			t.Fatal(err)
		}
		if j != next[i] {
			t.Errorf("flow %d: datagram %d came when %d was due", i, j, next[i])
		}
		if j > 0 && sender != from[i] && p.Stats().Refused == 0 {
			t.Errorf("flow %d changed to %s", i, sender)
		}
		next[i], from[i] = j+1, sender
		left--
	}
	return from
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
