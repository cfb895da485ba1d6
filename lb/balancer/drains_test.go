package balancer

import (
	"math"
	"net/netip"
	"testing"

	"github.com/sluice-lb/sluice/lb"
)

// drainable returns service ports of two Services with the same three endpoints at two ports.
func drainable() []*lb.Service {
	var all []*lb.Service
	for i, name := range []string{"one", "one", "two"} {
		s := echo(1, 2, 3)
		s.ID = lb.ID{Namespace: "default", Name: name, Port: []string{"a", "b", ""}[i], Protocol: lb.TCP}
		s.Addresses = []lb.Address{{Addr: address(100 + i)}}
		for k := range s.Backends {
			s.Backends[k] = lb.Backend{Addr: netip.AddrPortFrom(address(k+1).Addr(), 8080), Ready: true, Serving: true}
			if i == 1 {
				s.Backends[k].Addr = netip.AddrPortFrom(address(k+1).Addr(), 9090)
			}
		}
		all = append(all, &s)
	}
	return all
}

// TestDrainedGetsNothing: a drained endpoint gets no new connection, not even as the last one; what is open there
// stays, and is to be reset at the first deadline of those that cover it.
func TestDrainedGetsNothing(t *testing.T) {
	all := drainable()
	b := new(Balancer)
	update := func(d *lb.Drains, now int64) {
		var marked []*lb.Service
		for _, s := range all {
			marked = append(marked, d.Mark(s, now))
		}
		b.Drain(d)
		updateTo(t, b, marked...)
	}
	update(nil, 0)
	watched := 0
	b.OnWatch(func() { watched++ })
	f := Flow{Frontend: lb.Frontend{Protocol: lb.TCP, Addr: all[2].Addresses[0].Addr}}
	var open []Choice
	for range 3 {
		open = append(open, mustPick(t, b, f))
	}
	update(lb.NewDrains([]lb.Drain{{Addr: netip.AddrPortFrom(address(1).Addr(), 0)}}, nil), 0)
	for range 12 {
		if c := mustPick(t, b, f); c.Backend() == all[2].Backends[0].Addr {
			t.Fatal("a drained endpoint gets a connection")
		}
	}
	for _, c := range open {
		if !c.Live() || c.Leaves(5) != math.MaxInt64 {
			t.Errorf("what is open at %s is to leave", c.Backend())
		}
	}
	if watched != 0 {
		t.Error("connections are looked at without a deadline")
	}
	both := lb.NewDrains([]lb.Drain{{Addr: netip.AddrPortFrom(address(1).Addr(), 0), Deadline: 100},
		{Addr: netip.AddrPortFrom(address(1).Addr(), 8080), Deadline: 60},
		{Addr: netip.AddrPortFrom(address(2).Addr(), 0)}, {Addr: netip.AddrPortFrom(address(3).Addr(), 0)}}, nil)
	update(both, 10)
	if _, err := b.Pick(f); err != ErrNoBackend {
		t.Errorf("with all of them drained: %v", err)
	}
	leaves := map[netip.AddrPort]int64{all[2].Backends[0].Addr: 60, all[2].Backends[1].Addr: math.MaxInt64,
		all[2].Backends[2].Addr: math.MaxInt64}
	for _, c := range open {
		if at := c.Leaves(10); at != leaves[c.Backend()] || !c.Live() {
			t.Errorf("what is open at %s is to leave at %d", c.Backend(), at)
		}
	}
	if watched == 0 || both.Next(10) != 60 || both.Next(60) != 100 || both.Next(100) != math.MaxInt64 {
		t.Errorf("the deadlines are not noticed: looked %d times", watched)
	}
	update(both, 60)
	for _, c := range open {
		if c.Live() != (leaves[c.Backend()] != 60) {
			t.Errorf("flows at %s: live is %t after the deadline", c.Backend(), c.Live())
		}
	}
	update(nil, 70)
	for _, c := range open {
		if !c.Live() || c.Leaves(70) != math.MaxInt64 {
			t.Errorf("what is open at %s is to leave though nothing is drained", c.Backend())
		}
		c.Done(nil)
	}
}
