package tcp

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/internal/look"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// lookAll returns what is found, by the client's address.
func (p *proxy) lookAll(q look.Query) map[netip.AddrPort]look.Info {
	p.t.Helper()
	all := make(map[netip.AddrPort]look.Info)
	for loop := range len(p.Loops.Loops()) + 1 { // one more than there are
		for from := 0; from != look.End; {
			next, err := p.Look(loop, from, &q, func(i look.Info) bool {
				if _, twice := all[i.Client]; twice {
					p.t.Errorf("%s is found twice", i.Client)
				}
				all[i.Client] = i
				return len(all)%7 != 0 // in small parts
			})
			check(p.t, err)
			if next != look.End && next <= from {
				p.t.Fatalf("from %d it goes on with %d", from, next)
			}
			from = next
		}
	}
	return all
}

// TestLook: each connection is found once, with what it does and has moved, also after it has moved to another process.
func TestLook(t *testing.T) {
	testbed.Native(t)
	p := startProxy(t, nil, echoing(t))
	const n = 300
	var conns []*net.TCPConn
	for range n {
		c := p.dial()
		roundTrip(t, c)
		conns = append(conns, c)
	}
	check(t, conns[1].CloseWrite())
	if _, err := conns[1].Read(make([]byte, 1)); err == nil {
		t.Error("the echo does not end its stream")
	}
	p.eventually("one is over", func(s Stats) bool { return s.Active == n-1 })
	addr := func(c *net.TCPConn) netip.AddrPort { return c.LocalAddr().(*net.TCPAddr).AddrPort() }
	judge := func(p *proxy, in uint64, least time.Duration) {
		t.Helper()
		all := p.lookAll(look.Query{})
		if _, ok := all[addr(conns[1])]; ok || len(all) != n-1 {
			t.Errorf("%d are found, want %d; the one that is over: %t", len(all), n-1, ok)
		}
		i := all[addr(conns[0])]
		if i.Asked != frontend || i.Service.Name != "web" || i.State != look.Established || i.In != in || i.Out != in ||
			!i.Backend.IsValid() || i.Age < least || i.Age > patience || !i.Known || i.Idle > patience || i.RTT <= 0 {
			t.Errorf("the first is %+v", i)
		}
	}
	judge(p, 4, 0)
	for _, x := range []struct {
		q    look.Query
		want int
	}{
		{look.Query{Name: "web"}, n - 1},
		{look.Query{Name: "other"}, 0},
		{look.Query{Namespace: "default", Client: netip.MustParsePrefix("127.0.0.0/30")}, n - 1},
		{look.Query{Client: netip.MustParsePrefix("10.0.0.0/8")}, 0},
		{look.Query{Backend: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), 0)}, n - 1},
		{look.Query{Backend: netip.MustParseAddrPort("127.0.0.1:1")}, 0},
	} {
		if got := len(p.lookAll(x.q)); got != x.want {
			t.Errorf("%+v finds %d, want %d", x.q, got, x.want)
		}
	}

	born := time.Now()
	next := p.successor(1)
	p.moveTo(next)
	roundTrip(t, conns[0])
	judge(next, 8, time.Since(born)/2)
}

// TestLookDialling: one whose backend has not answered says so, and what it asks for.
func TestLookDialling(t *testing.T) {
	to := silent(t)
	p := startProxy(t, func(s *Server) { s.DialTimeouts = []time.Duration{patience} }, to)
	c := p.dial()
	p.eventually("it is dialling", func(s Stats) bool { return s.Dials == 1 })
	all := p.lookAll(look.Query{Name: "web"})
	i := all[c.LocalAddr().(*net.TCPAddr).AddrPort()]
	if want := (look.Info{Protocol: i.Protocol, Client: i.Client, Asked: frontend, Service: i.Service, Backend: to,
		State: look.Dialling, Age: i.Age, Idle: i.Idle, Known: i.Known, RTT: i.RTT}); len(all) != 1 || i != want {
		t.Errorf("%d are found: %+v, want %+v", len(all), i, want)
	}
}
