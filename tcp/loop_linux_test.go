package tcp

import (
	"io"
	"net"
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

// exchange has a byte echoed.
func exchange(t *testing.T, c *net.TCPConn) {
	t.Helper()
	_, err := c.Write([]byte("x"))
	check(t, err)
	_, err = io.ReadFull(c, make([]byte, 1))
	check(t, err)
}
