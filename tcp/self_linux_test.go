package tcp

import (
	"io"
	"net"
	"net/netip"
	"testing"
)

// TestSelfConnect: a backend of this host that is down has an ephemeral port, which the kernel may give to the very
// socket that connects to it. TCP's simultaneous open succeeds then, and the client would talk to itself.
func TestSelfConnect(t *testing.T) {
	// With 200 ports it takes 100 dials (the kernel tries the even ones first), and not 14,000.
	if !withPorts(t, 40000, 40199) {
		return
	}
	p := startProxy(t, nil, netip.MustParseAddrPort("127.0.0.1:40100"))
	const clients = 80
	for range clients {
		c, err := net.DialTimeout("tcp", p.addr.String(), patience)
		if err != nil {
			continue // reset already
		}
		if _, err := io.WriteString(c, "GET / HTTP/1.0\r\n\r\n"); err == nil { // it may be reset before that
			if n, err := c.Read(make([]byte, 100)); n > 0 || !isReset(err) {
				t.Errorf("the client of a backend that is down reads %d bytes, %v; want a reset", n, err)
			}
		}
		_ = c.(*net.TCPConn).SetLinger(0)
		_ = c.Close()
	}
	if s := p.Stats(); s.Established != 0 || s.DialGaveUp != clients {
		t.Errorf("stats %+v, want %d clients reset", s, clients)
	}
}
