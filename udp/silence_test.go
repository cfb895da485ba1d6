package udp

import (
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/lb"
)

// muting answers with its name until it is muted.
func muting(t *testing.T, name string) (netip.AddrPort, *atomic.Bool) {
	var mute atomic.Bool
	b := listenUDP(t, "127.0.0.1:0").serve(t, func([]byte, netip.AddrPort) []byte {
		if mute.Load() {
			return nil
		}
		return []byte(name)
	})
	return b.addr, &mute
}

// goOn has clients send every so often until all of their answers are as ok wants.
func goOn(t *testing.T, clients []*client, ok func(answer string) bool) {
	t.Helper()
	eventually(t, "every client has an answer of another backend", func() bool {
		good := 0
		for _, c := range clients {
			c.send("q")
		}
		for _, c := range clients {
			_ = c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
			if n, err := c.Read(c.buf); err == nil && ok(string(c.buf[:n])) {
				good++
			}
		}
		return good == len(clients)
	})
}

// TestSilentAfterAnAnswer: six clients that go on sending from one port each to a backend that has answered, and is
// silent now, get another one.
func TestSilentAfterAnAnswer(t *testing.T) {
	t.Parallel()
	first, mute := muting(t, "first")
	p := startProxy(t, 1, func(s *Server) { s.LB.Outlier = lb.DefaultOutlier }, first)
	s := service(1, first)
	s.Policies = &lb.Policies{UDPResponses: 1}
	p.setServices(s)
	var clients []*client
	for i := range byte(6) {
		c := dialFrom(t, &net.UDPAddr{IP: net.IPv4(127, 0, 0, i+1)}, p.addr)
		clients = append(clients, c)
		c.ask("q")
	}
	s = service(1, first, naming(t, "second").addr)
	s.Policies = &lb.Policies{UDPResponses: 1}
	p.setServices(s)
	mute.Store(true)
	goOn(t, clients, func(a string) bool { return a == "second" })
	if n := p.Stats().NotAnswered; n < 5 { // the last one may leave what is ejected
		t.Errorf("%d flows were not answered, want 5 or 6", n)
	}
}

// TestSilentAlone: where there is no other backend the flow, which has its port, stays.
func TestSilentAlone(t *testing.T) {
	t.Parallel()
	first, mute := muting(t, "first")
	p := startProxy(t, 1, nil, first)
	s := service(1, first)
	s.Policies = &lb.Policies{UDPResponses: 1}
	p.setServices(s)
	c := dial(t, p.addr)
	c.ask("q")
	mute.Store(true)
	eventually(t, "it counts as not answered twice", func() bool { c.send("q"); return p.Stats().NotAnswered == 2 })
	mute.Store(false)
	if a := c.ask("q"); a != "first" || p.Stats().Created != 1 {
		t.Errorf("%q answers, of %d flows", a, p.Stats().Created)
	}
}

// TestSilenceIsAllowed: where answers are not expected a client stays where it is.
func TestSilenceIsAllowed(t *testing.T) {
	t.Parallel()
	first, mute := muting(t, "first")
	p := startProxy(t, 1, nil, first)
	c := dial(t, p.addr)
	c.ask("q")
	p.setBackends(first, naming(t, "second").addr)
	mute.Store(true)
	for end := time.Now().Add(time.Duration(silence) + 200*time.Millisecond); time.Now().Before(end); {
		c.send("q")
		time.Sleep(50 * time.Millisecond) // nothing is to happen: there is no event
	}
	if n := p.Stats(); n.Created != 1 || n.NotAnswered != 0 {
		t.Errorf("%+v, want one flow", n)
	}
}

// TestFlowsLeaveABadBackend: a client that does not pause leaves a backend that fails its checks with its next
// datagram, and comes back to none that is remembered; one that all others leave for has to stay.
func TestFlowsLeaveABadBackend(t *testing.T) {
	t.Parallel()
	a, b := naming(t, "a"), naming(t, "b")
	p := startProxy(t, 1, func(s *Server) { s.LB.Outlier, s.IdleTimeout = lb.DefaultOutlier, 0 }, a.addr, b.addr)
	c := dial(t, p.addr)
	at := map[string]netip.AddrPort{"a": a.addr, "b": b.addr}
	id := service(1, a.addr).ID
	first := c.ask("q")
	check := func(name string, failed error) { p.LB.Health().Checked(id, at[name], lb.TCP, failed, eventloop.Now()) }
	check(first, errors.New("not ready"))
	second := c.ask("q")
	if second == first || c.ask("q") != second {
		t.Errorf("%q fails its check, and %q answers", first, second)
	}
	if n := p.Stats(); n.Moved != 1 || n.Created != 2 {
		t.Errorf("%+v, want one flow moved", n)
	}
	check(second, errors.New("not ready")) // as the other one does: both serve
	if got := c.ask("q"); got != second {
		t.Errorf("both fail their checks, and %q answers, not %q", got, second)
	}
	check(first, nil)
	if got := c.ask("q"); got != first {
		t.Errorf("%q answers, and %q passes", got, first)
	}
}
