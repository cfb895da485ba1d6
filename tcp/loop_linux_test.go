package tcp

import (
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/sluice-lb/sluice/lb"
)

// TestLoopEndsWithTheMove: a connection whose backend leads back to us, which the process before has let be, is reset
// by the one that takes over; another goes on.
func TestLoopEndsWithTheMove(t *testing.T) {
	loops, stays := echoing(t), echoing(t)
	p := startProxy(t, nil, loops)
	looping := p.dial()
	exchange(t, looping)
	p.serve(stays)
	other := p.dial()
	exchange(t, other)

	next := p.successor(2)
	table, err := lb.NewTable([]*lb.Service{
		{ID: lb.ID{Namespace: "default", Name: "web", Protocol: lb.TCP}, Addresses: []lb.Address{{Addr: frontend}},
			Backends: []lb.Backend{{Addr: loops, Ready: true, Serving: true}, {Addr: stays, Ready: true, Serving: true}}},
		{ID: lb.ID{Namespace: "default", Name: "front", Protocol: lb.TCP}, Addresses: []lb.Address{{Addr: loops}}},
	}, lb.Node{})
	check(t, err)
	next.LB.Update(table)
	p.moveTo(next)
	if _, err := looping.Read(make([]byte, 1)); !isReset(err) {
		t.Errorf("the client of a loop saw %v, want a reset", err)
	}
	exchange(t, other)
	if s := next.Stats(); s.Active != 1 || s.Shortages != 0 {
		t.Errorf("stats %+v, want one connection", s)
	}
}

// TestLoopOfDeletedServiceEndsWithTheMove: the same of a connection that has come back twice, by Services that are gone
// when the next process takes over.
func TestLoopOfDeletedServiceEndsWithTheMove(t *testing.T) {
	stays := echoing(t)
	p := startProxy(t, nil, stays)
	other := p.dial()
	exchange(t, other)
	var hops atomic.Int32
	ends := netip.MustParseAddrPort("10.96.0.2:80")
	loop := func(int) (netip.AddrPort, error) {
		if hops.Add(1) <= 2 {
			return frontend, nil
		}
		return ends, nil
	}
	release := p.block() // nothing is accepted while this changes
	p.OriginalDst = loop
	release()
	table, err := lb.NewTable([]*lb.Service{
		{ID: lb.ID{Name: "loop", Protocol: lb.TCP}, Addresses: []lb.Address{{Addr: frontend}},
			Backends: []lb.Backend{{Addr: p.addr, Ready: true, Serving: true}}},
		{ID: lb.ID{Name: "end", Protocol: lb.TCP}, Addresses: []lb.Address{{Addr: ends}},
			Backends: []lb.Backend{{Addr: stays, Ready: true, Serving: true}}},
	}, lb.Node{})
	check(t, err)
	p.LB.Update(table)
	looping := p.dial()
	exchange(t, looping)
	if s := p.Stats(); s.Active != 4 {
		t.Fatalf("%d connections, want the other and three of a loop", s.Active)
	}
	p.LB.Update(nil)
	next := p.successor(2)
	p.moveTo(next)
	if _, err := looping.Read(make([]byte, 1)); !isReset(err) {
		t.Errorf("the client of a loop saw %v, want a reset", err)
	}
	exchange(t, other)
	next.eventually("all of the loop has ended", func(s Stats) bool { return s.Active == 1 })
}

// TestClientsWithOurPortsMove: clients on this node whose addresses are those of our own connections to backends, as
// the kernel gives a port to every destination again, are no loop: they move like others.
func TestClientsWithOurPortsMove(t *testing.T) {
	if !withPorts(t, 40000, 40000+fewPorts-1) {
		return
	}
	p := onePortLoop(t, echoing(t))             // the backend listens at one of the ports
	clients := make([]*net.TCPConn, fewPorts-1) // so that the others are all in use twice
	for i := range clients {
		clients[i] = p.dial()
		exchange(t, clients[i])
	}
	next := p.successor(2)
	p.moveTo(next)
	for _, c := range clients {
		exchange(t, c)
	}
	if s := next.Stats(); s.Active != int64(len(clients)) {
		t.Errorf("%d connections have moved, want %d", s.Active, len(clients))
	}
}

// exchange has a byte echoed.
func exchange(t *testing.T, c *net.TCPConn) {
	t.Helper()
	_, err := c.Write([]byte("x"))
	check(t, err)
	_, err = io.ReadFull(c, make([]byte, 1))
	check(t, err)
}
