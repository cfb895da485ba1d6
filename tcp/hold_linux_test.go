package tcp

import (
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/lb"
)

// holding has the Service hold its clients, so many at most, for so long, until it has these backends.
func (p *proxy) holding(policies lb.Policies, backends ...lb.Backend) {
	p.t.Helper()
	table, err := lb.NewTable([]*lb.Service{{ID: lb.ID{Namespace: "default", Name: "web", Protocol: lb.TCP},
		Addresses: []lb.Address{{Addr: frontend}}, Backends: backends, Policies: &policies}}, lb.Node{})
	check(p.t, err)
	p.LB.Update(table)
	p.TableChanged()
}

// eachWay runs a test with loops and without.
func eachWay(t *testing.T, test func(t *testing.T)) {
	defer func() { withoutLoops = false }()
	for _, withoutLoops = range []bool{false, true} {
		name := "loops"
		if withoutLoops {
			name = "goroutines"
		}
		t.Run(name, test)
	}
}

// TestHold: clients of a Service without endpoints wait, up to a number; the one beyond is reset. When there is an
// endpoint all are served, and what they have sent before is passed on. One report says that endpoints are needed.
func TestHold(t *testing.T) {
	eachWay(t, func(t *testing.T) {
		const most = 20
		var needs atomic.Int32
		p := startProxy(t, func(s *Server) { s.LB.OnNeed = func(lb.ID) { needs.Add(1) } })
		p.holding(lb.Policies{Hold: int64(time.Hour), HoldConnections: most})
		clients := make([]*net.TCPConn, most)
		for i := range clients {
			clients[i] = p.dial()
			_, err := clients[i].Write([]byte("early"))
			check(t, err)
		}
		p.eventually("all are held", func(s Stats) bool { return s.Held == most && s.Dialling == 0 })
		p.expectReset()
		p.holding(lb.Policies{Hold: int64(time.Hour), HoldConnections: most},
			lb.Backend{Addr: echoing(t), Ready: true, Serving: true})
		for _, c := range clients {
			got := make([]byte, len("early"))
			if _, err := io.ReadFull(c, got); err != nil || string(got) != "early" {
				t.Fatalf("a held client got %q, %v", got, err)
			}
			check(t, c.Close())
		}
		s := p.Stats()
		if s.Held != 0 || s.Holds != most || s.HoldFull != 1 || s.NoBackend != 1 || s.HoldExpired+s.HoldLeft != 0 {
			t.Errorf("stats %+v", s)
		}
		if n := p.LB.Counters().All()[0].Held; n != 0 || needs.Load() != 1 {
			t.Errorf("%d places are taken; %d reports", n, needs.Load())
		}
	})
}

// TestHoldExpires: a client that has waited for as long as its Service requests is reset. One of a Service that
// requests nothing is reset at once.
func TestHoldExpires(t *testing.T) {
	eachWay(t, func(t *testing.T) {
		p := startProxy(t, nil)
		p.holding(lb.Policies{})
		p.expectReset()
		p.holding(lb.Policies{Hold: int64(50 * time.Millisecond)})
		p.expectReset()
		p.eventually("none is left", func(s Stats) bool {
			return s.Active == 0 && s.Held == 0 && s.Holds == 1 && s.HoldExpired == 1 && p.LB.Counters().All()[0].Held == 0
		})
	})
}

// TestHeldClientLeaves: its place is another's, and nothing is left of it.
func TestHeldClientLeaves(t *testing.T) {
	p := startProxy(t, nil)
	p.holding(lb.Policies{Hold: int64(time.Hour), HoldConnections: 1})
	for i := range uint64(3) {
		c := p.dial()
		_, err := c.Write([]byte("early"))
		check(t, err)
		p.eventually("it is held", func(s Stats) bool { return s.Held == 1 })
		if i == 1 {
			check(t, c.SetLinger(0))
		}
		check(t, c.Close())
		p.eventually("it has left", func(s Stats) bool { return s.Active == 0 && s.HoldLeft == i+1 })
	}
	if s := p.Stats(); s.HoldFull != 0 || p.LB.Counters().All()[0].Held != 0 {
		t.Errorf("stats %+v", s)
	}
}

// TestHeldInShutdown: a held client is refused as the process ends, which would wait for it in vain.
func TestHeldInShutdown(t *testing.T) {
	p := startProxy(t, nil)
	p.holding(lb.Policies{Hold: int64(time.Hour)})
	c := p.dial()
	_, err := c.Write([]byte("early"))
	check(t, err)
	p.eventually("it is held", func(s Stats) bool { return s.Held == 1 })
	check(t, p.Shutdown(t.Context()))
	wantReset(t, c, "a held client")
}

// TestHoldFirstComeFirstServed: on one loop those that came first are dialled for first.
func TestHoldFirstComeFirstServed(t *testing.T) {
	p := newProxy(t, 1)
	p.holding(lb.Policies{Hold: int64(time.Hour)})
	var err error
	p.addr, err = p.ListenSteered(netip.MustParseAddrPort("127.0.0.1:0"))
	check(t, err)
	clients := make([]*net.TCPConn, 10)
	for i := range clients {
		clients[i] = p.dial()
		_, err := clients[i].Write([]byte{byte(i)})
		check(t, err)
		p.eventually("it is held", func(s Stats) bool { return s.Held == int64(i+1) })
	}
	var order []byte
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer l.Close()
	p.holding(lb.Policies{Hold: int64(time.Hour)}, lb.Backend{Addr: addrPort(l.Addr()), Ready: true, Serving: true})
	for range clients { // the kernel keeps the order of those that it has accepted
		c, err := l.Accept()
		check(t, err)
		check(t, c.SetDeadline(time.Now().Add(patience)))
		first := make([]byte, 1)
		_, err = io.ReadFull(c, first)
		check(t, err)
		order = append(order, first[0])
		check(t, c.Close())
	}
	for i, n := range order {
		if int(n) != i {
			t.Fatalf("the order is %v", order)
		}
	}
}

// TestHeldMove: clients that are held go on to wait at the next process, for what is left of their time.
func TestHeldMove(t *testing.T) {
	p := startProxy(t, nil)
	p.holding(lb.Policies{Hold: int64(time.Hour), HoldConnections: 4})
	clients := make([]*net.TCPConn, 4)
	for i := range clients {
		clients[i] = p.dial()
		_, err := clients[i].Write([]byte("early"))
		check(t, err)
	}
	p.eventually("all are held", func(s Stats) bool { return s.Held == 4 })
	next := p.successor(2)
	m := p.moveTo(next)
	for _, f := range m.conns {
		if f.Dial == nil || !f.Dial.Held || f.Dial.Left <= 0 || f.Dial.Left > time.Hour+time.Second {
			t.Errorf("moved %+v", f.Dial)
		}
	}
	next.eventually("all are held", func(s Stats) bool { return s.Held == 4 && next.LB.Counters().All()[0].Held == 4 })
	check(t, clients[3].Close())
	next.eventually("one has left", func(s Stats) bool { return s.Held == 3 && s.Active == 3 })
	next.holding(lb.Policies{Hold: int64(time.Hour)}, lb.Backend{Addr: echoing(t), Ready: true, Serving: true})
	for _, c := range clients[:3] {
		got := make([]byte, len("early"))
		if _, err := io.ReadFull(c, got); err != nil {
			t.Errorf("a held client got %q, %v", got, err)
		}
		check(t, c.Close())
	}
}
