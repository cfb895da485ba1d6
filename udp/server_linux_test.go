package udp

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The reply comes from the address that was asked, whichever that is.
func TestReplySource(t *testing.T) {
	for at, asked := range map[string][]string{
		"0.0.0.0:0": {"127.0.0.1", "127.0.0.2", "127.9.9.9"},
		"[::]:0":    {"::1"},
	} {
		loopback := "127.0.0.1:0"
		if strings.HasPrefix(at, "[") {
			loopback = "[::1]:0"
		}
		b := listenUDP(t, loopback).serve(t, func(_ []byte, from netip.AddrPort) []byte { return []byte(from.String()) })
		p := startProxyAt(t, 2, nil, at, b.addr)
		c := listenUDP(t, loopback) // one client for all
		flows := map[string]bool{}
		buf := make([]byte, 100)
		for range 3 {
			for _, ip := range asked {
				to := netip.AddrPortFrom(netip.MustParseAddr(ip), p.addr.Port())
				c.answer(t, "q", to)
				_ = c.SetReadDeadline(time.Now().Add(patience))
				n, from, err := c.ReadFromUDPAddrPort(buf)
				if err != nil {
					t.Fatal(err)
				}
				if from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port()); from != to {
					t.Errorf("asked %s, answered by %s", to, from)
				}
				flows[string(buf[:n])] = true
			}
		}
		if len(flows) != len(asked) {
			t.Errorf("%d addresses asked by one client were %d flows", len(asked), len(flows))
		}
	}
}

// The kernel spreads clients over the sockets of all loops, and a client keeps
// its loop.
func TestClientsAreSpread(t *testing.T) {
	p := startProxy(t, 4, nil, reflecting(t, "127.0.0.1:0").addr)
	clients := make([]*client, 400)
	flows := make([]string, len(clients))
	for i := range clients {
		clients[i] = dial(t, p.addr)
		flows[i] = clients[i].ask("q")
	}
	for i, c := range clients {
		if again := c.ask("q"); again != flows[i] {
			t.Errorf("client %d was flow %s, then %s", i, flows[i], again)
		}
	}
	for i, sh := range p.shards {
		// 100 is the mean; 50 is more than five standard deviations below.
		if n := sh.count.Created.Load(); n < 50 {
			t.Errorf("loop %d has %d of 400 clients", i, n)
		}
	}
}

// A port belongs to one group of sockets, although the group shares it.
func TestPortIsNotShared(t *testing.T) {
	p := startProxy(t, 2, nil, echo(t, "127.0.0.1:0").addr)
	other := newServer(t, 2, nil)
	for name, s := range map[string]*Server{"another Server": other, "the Server itself": p.Server} {
		for _, at := range []netip.AddrPort{p.addr, netip.AddrPortFrom(netip.IPv4Unspecified(), p.addr.Port())} {
			if _, err := s.Listen(frontend(2, false), at); !errors.Is(err, unix.EADDRINUSE) {
				t.Errorf("Listen of %s on %s = %v, want EADDRINUSE", name, at, err)
			}
		}
	}
	if _, err := other.Listen(frontend(2, false), echo(t, "127.0.0.1:0").addr); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("Listen on a plain socket's port = %v, want EADDRINUSE", err)
	}
	if _, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(p.addr)); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("a plain socket on our port = %v, want EADDRINUSE", err)
	}
	if _, err := p.Listen(p.front, netip.MustParseAddrPort("127.0.0.1:0")); err == nil || errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("a second Listen for one frontend = %v, want an error of its own", err)
	}
	if a := dial(t, p.addr).ask("q"); a != "q" {
		t.Errorf("answer = %q after all that", a)
	}
}
