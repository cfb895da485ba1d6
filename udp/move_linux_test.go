package udp

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMove: a frontend is served at another address and at the one before until it leaves that, and its clients go on
// then with the backend that they had, on whichever loop.
func TestMove(t *testing.T) {
	const clients = 20
	both := func(name string) netip.AddrPort { // answers with its name, and with the address that was asked from
		return listenUDP(t, "127.0.0.1:0").serve(t, func(_ []byte, from netip.AddrPort) []byte {
			return []byte(name + " " + from.String())
		}).addr
	}
	p := startProxy(t, 2, func(s *Server) { s.IdleTimeout = 0 }, both("one"), both("two"))
	conns, flows := make([]*client, clients), make([]string, clients)
	for i := range conns {
		conns[i] = dial(t, p.addr)
		flows[i] = conns[i].ask("q")
	}
	if _, err := p.Move(p.front, p.addr); err == nil {
		t.Error("moved to the port that it has")
	}
	now, err := p.Move(p.front, netip.AddrPortFrom(p.addr.Addr(), 0))
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range conns {
		if got := c.ask("q"); got != flows[i] {
			t.Errorf("client %d has flow %s and had %s, before it had to leave", i, got, flows[i])
		}
	}
	p.Leave(p.front)
	p.Leave(frontend(9, false)) // unknown
	for _, c := range conns {
		c.send("q") // and is not refused
	}
	for i, c := range conns {
		to := unix.SockaddrInet4{Port: int(now.Port()), Addr: now.Addr().As4()}
		raw, err := c.SyscallConn()
		var connected error
		if err == nil {
			err = raw.Control(func(fd uintptr) { connected = unix.Connect(int(fd), &to) })
		}
		if err = errors.Join(err, connected); err != nil {
			t.Fatal(err)
		}
		got, _, _ := strings.Cut(c.ask("q"), " ")
		if had, _, _ := strings.Cut(flows[i], " "); got != had {
			t.Errorf("client %d is at backend %s and was at %s", i, got, had)
		}
	}
	p.Settle(p.front)
	if s := p.Stats(); s.Active != clients || s.Parked != clients || s.Resumed != clients {
		t.Errorf("stats = %+v, want %d flows parked and resumed", s, clients)
	}
	if _, err := p.Listen(frontend(9, false), p.addr); err != nil {
		t.Errorf("the port before is not free: %v", err)
	}
}
