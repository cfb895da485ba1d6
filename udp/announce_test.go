package udp

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/lb"
)

// announced is a Service whose backends hear of clients by PROXY headers.
func announced(backends ...netip.AddrPort) *lb.Service {
	s := service(1, backends...)
	s.Policies = &lb.Policies{ProxyProtocol: "v2"}
	return s
}

// headerOf divides a datagram into who the client is and what it has asked, and what it has sent.
func headerOf(p []byte) (said, sent string) {
	if len(p) < 28 || string(p[:14]) != "\r\n\r\n\x00\r\nQUIT\n\x21\x12" {
		return "no header", string(p)
	}
	at := func(addr, port []byte) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(addr)), binary.BigEndian.Uint16(port))
	}
	end := 16 + int(binary.BigEndian.Uint16(p[14:]))
	return fmt.Sprint(at(p[16:], p[24:]), " ", at(p[20:], p[26:])), string(p[end:])
}

// hearing answers with what the header says, and what it sent.
func hearing(t *testing.T) *backend {
	return listenUDP(t, "127.0.0.1:0").serve(t, func(q []byte, _ netip.AddrPort) []byte {
		said, sent := headerOf(q)
		return []byte(said + " " + sent)
	})
}

// hears asks, and wants the backend to have heard who does.
func (c *client) hears(f lb.Frontend, question string) {
	c.t.Helper()
	want := fmt.Sprintf("%s %s %s", c.LocalAddr(), f.Addr, question)
	if got := c.ask(question); got != want {
		c.t.Errorf("heard %.200q, want %.200q", got, want)
	}
}

// TestAnnounced: each datagram has a header, which is not counted, over the refusals of others and in bursts; one for
// which there is no room with it is dropped and counted, and flows that are there stay as they are.
func TestAnnounced(t *testing.T) {
	needsRefusals(t)
	speaks := hearing(t)
	p := startProxy(t, 1, nil, speaks.addr)
	plain := dial(t, p.addr)
	if got := plain.ask("q"); got != "no header q" {
		t.Errorf("%q", got)
	}
	refusing := listenUDP(t, "127.0.0.1:0")
	_ = refusing.Close()
	p.setServices(announced(refusing.addr, speaks.addr))
	if got := plain.ask("q"); got != "no header q" {
		t.Errorf("a flow that was there: %q", got)
	}
	before, asked := p.Stats(), 0
	for range 4 {
		c := dial(t, p.addr)
		for _, size := range []int{0, 1, 1000, 9000, 60000} {
			c.hears(p.front, strings.Repeat("x", size))
			asked += size
		}
	}
	if s := p.Stats(); s.BytesIn-before.BytesIn != uint64(asked) || s.DatagramsIn-before.DatagramsIn != 20 &&
		s.Resent == before.Resent {
		t.Errorf("%d bytes in, want %d; stats %+v", s.BytesIn-before.BytesIn, asked, s)
	}
	c := dial(t, p.addr)
	const burst = 100
	for i := range burst {
		c.send(fmt.Sprint(i))
	}
	for i := range burst {
		if _, sent, _ := strings.Cut(strings.TrimPrefix(c.receive(), c.LocalAddr().String()+" "),
			" "); sent != fmt.Sprint(i) {
			t.Fatalf("answer %d is to %q", i, sent)
		}
	}
	c.send(strings.Repeat("x", 65507))
	eventually(t, "it is counted", func() bool { return p.Stats().TooLong > 0 })
	c.hears(p.front, "after")
}
