package balancer

import (
	"math"
	"net/netip"
	"testing"

	"github.com/sluice-lb/sluice/lb"
)

// TestGoneIsTakenOver: when a backend was found to have left, be it before this process began, and what its service had
// requested, which is deleted, hold at the next Balancer as well, whatever is given for all there.
func TestGoneIsTakenOver(t *testing.T) {
	id := lb.ID{Namespace: "default", Name: "db", Protocol: lb.TCP}
	at := func(n byte) netip.AddrPort { return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, n}), 80) }
	table := func(name string, n byte, p *lb.Policies) *lb.Table {
		s := &lb.Service{ID: id, Addresses: []lb.Address{{Addr: at(100 + n)}}, Policies: p,
			Backends: []lb.Backend{{Addr: at(n), Ready: true, Serving: true}}}
		s.Name = name
		all, err := lb.NewTable([]*lb.Service{s}, lb.Node{})
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	const second = int64(1e9)
	for _, c := range []struct {
		drain, since, leaves int64
	}{
		{-1, 0, math.MaxInt64},
		{7 * second, 0, 100 + drainGrace + 7*second},
		{7 * second, -3 * second, drainGrace + 4*second},
	} {
		b := new(Balancer)
		b.Update(table("db", 1, &lb.Policies{OnEndpointRemoved: c.drain}))
		choice, err := b.Pick(Flow{Frontend: lb.Frontend{Protocol: lb.TCP, Addr: at(101)}})
		if err != nil {
			t.Fatal(err)
		}
		if since, drain := choice.Gone(); since != 0 || drain != 0 {
			t.Errorf("before it has left: %d, %d", since, drain)
		}
		b.Update(table("other", 2, nil))
		if _, drain := choice.Gone(); drain != c.drain {
			t.Errorf("it may stay for %d, want %d", drain, c.drain)
		}
		next := &Balancer{Defaults: lb.Policies{OnEndpointRemoved: second}}
		next.Update(table("other", 2, nil))
		resumed := next.Memory().Resume(id, at(1))
		resumed.ResumeGone(c.since, c.drain)
		if leaves := resumed.Leaves(100); leaves != c.leaves {
			t.Errorf("%+v: it leaves at %d", c, leaves)
		}
		if since, drain := resumed.Gone(); c.since != 0 && since != c.since || drain != c.drain {
			t.Errorf("%+v: it has been gone since %d, and may stay for %d", c, since, drain)
		}
	}
}
