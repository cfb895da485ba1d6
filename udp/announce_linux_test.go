package udp

import (
	"net/netip"
	"testing"
)

// TestMoveAnnounced: the datagrams of a flow have the same header after a hand-over, as if it had been resumed.
func TestMoveAnnounced(t *testing.T) {
	headers := make(chan string, 10)
	p := startProxy(t, 1, nil)
	p.setServices(announced(listenUDP(t, "127.0.0.1:0").serve(t, func(q []byte, _ netip.AddrPort) []byte {
		headers <- string(q[:len(q)-1])
		return q[len(q)-1:]
	}).addr))
	c := dial(t, p.addr)
	c.ask("a")
	next, _ := p.moveTo(2)
	c.ask("b")
	if a, b := <-headers, <-headers; a != b || len(a) < 28 {
		t.Errorf("header %q, and %q after the hand-over", a, b)
	}
	if n := next.Stats().BytesIn; n != 2 {
		t.Errorf("%d bytes in, want 2", n)
	}
}
