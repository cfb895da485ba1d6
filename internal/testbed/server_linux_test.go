package testbed

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"
)

// TestEchoTCP sends more than all buffers hold, and ends its data before it reads
// the end of the server's.
func TestEchoTCP(t *testing.T) {
	NoLeaks(t)
	tb := NewT(t, Config{Pods: 1})
	s := must[*Server](t)(tb.Pods[0].EchoTCP(":0"))
	defer s.Close()
	c := must[net.Conn](t)(tb.Client.Dial(within(t, soon), "tcp", netip.AddrPortFrom(tb.Pods[0].Addr6, s.Addr.Port()).String()))
	defer c.Close()
	c.SetDeadline(time.Now().Add(soon))
	sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<20)
	go func() {
		c.Write(sent)
		c.(*net.TCPConn).CloseWrite()
	}()
	got, err := io.ReadAll(c)
	if err != nil || !bytes.Equal(got, sent) {
		t.Errorf("sent %d bytes, got %d, %v", len(sent), len(got), err)
	}
}

func TestEchoUDP(t *testing.T) {
	tb := NewT(t, Config{Pods: 1})
	s := must[*Server](t)(tb.Pods[0].EchoUDP("10.244.1.10:7"))
	defer s.Close()
	c := must[net.Conn](t)(tb.Client.Dial(within(t, soon), "udp", s.Addr.String()))
	defer c.Close()
	c.SetDeadline(time.Now().Add(soon))
	buf := make([]byte, 65535)
	for _, size := range []int{0, 1, 65507} { // the largest that IPv4 carries
		sent := bytes.Repeat([]byte{'x'}, size)
		if _, err := c.Write(sent); err != nil {
			t.Fatal(err)
		}
		if n, err := c.Read(buf); err != nil || !bytes.Equal(buf[:n], sent) {
			t.Errorf("sent %d bytes, got %d, %v", size, n, err)
		}
	}
}

// TestWhoReadsRequest sends a request first, as an HTTP client does: the answer
// must come and end, and no reset.
func TestWhoReadsRequest(t *testing.T) {
	tb := NewT(t, Config{Pods: 1})
	s := must[*Server](t)(tb.Pods[0].WhoTCP("10.244.1.10:80"))
	defer s.Close()
	c := must[net.Conn](t)(tb.Client.Dial(within(t, soon), "tcp", s.Addr.String()))
	defer c.Close()
	c.SetDeadline(time.Now().Add(soon))
	for range 2 {
		if _, err := c.Write(make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
	}
	if b, err := io.ReadAll(c); err != nil || string(b) != "pod-0\n" {
		t.Errorf("got %q, %v", b, err)
	}
}

// TestServerClose closes servers with a connection open: clients see an end, the
// next is refused, and the port can be had again.
func TestServerClose(t *testing.T) {
	NoLeaks(t)
	tb := NewT(t, Config{Pods: 1})
	pod := tb.Pods[0]
	for network, start := range map[string]func(string) (*Server, error){"tcp": pod.EchoTCP, "udp": pod.EchoUDP} {
		s := must[*Server](t)(start("10.244.1.10:7"))
		c := must[net.Conn](t)(tb.Client.Dial(within(t, soon), network, s.Addr.String()))
		defer c.Close()
		c.Write([]byte("?"))
		expectEcho(t, c, "?")
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Errorf("second close: %v", err)
		}
		if network == "udp" {
			c.Write([]byte("?"))
		}
		c.SetReadDeadline(time.Now().Add(soon))
		if _, err := c.Read(make([]byte, 1)); err == nil || IsDropped(err) {
			t.Errorf("%s: after close got %v, want an end or a refusal", network, err)
		}
		if network == "tcp" {
			if _, err := tb.Client.Dial(within(t, soon), network, s.Addr.String()); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("dial after close: %v", err)
			}
		}
		again := must[*Server](t)(start("10.244.1.10:7"))
		again.Close()
	}
}

// TestRefusalsAreNotLimited asks a closed UDP port more often than the kernel
// would answer by default.
func TestRefusalsAreNotLimited(t *testing.T) {
	tb := NewT(t, Config{Pods: 1})
	for _, a := range []netip.Addr{tb.Pods[0].Addr4, tb.Pods[0].Addr6} {
		c := must[net.Conn](t)(tb.Client.Dial(within(t, soon), "udp", netip.AddrPortFrom(a, 9).String()))
		defer c.Close()
		for i := range 30 {
			c.Write([]byte("?"))
			c.SetReadDeadline(time.Now().Add(soon))
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Fatalf("datagram %d to %s: got %v, want a refusal", i, a, err)
			}
		}
	}
}

// TestAltAddress checks that a server of the node's second address answers from it.
func TestAltAddress(t *testing.T) {
	tb := NewT(t, Config{Pods: -1})
	for _, a := range []netip.Addr{tb.Node.Alt4, tb.Node.Alt6} {
		s := must[*Server](t)(tb.Node.WhoUDP(netip.AddrPortFrom(a, 53).String()))
		defer s.Close()
		expectWho(t, tb.Client, "udp", s.Addr, "node") // a connected socket takes no other source
	}
}
