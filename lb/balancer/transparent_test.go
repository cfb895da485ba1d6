package balancer

import (
	"net/netip"
	"testing"

	"github.com/sluice-lb/sluice/lb"
)

// TestTransparent: connections come from the client's own address only where the backend's answers pass this node and
// get to nothing else before.
func TestTransparent(t *testing.T) {
	node := lb.Node{PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")},
		Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.10")}}
	for _, c := range []struct {
		backend, client string
		local           bool
		requested       lb.Switch
		want            bool
	}{
		{"10.244.1.10", "192.0.2.100", true, lb.On, true},
		{"10.244.1.10", "192.0.2.10", true, lb.On, true}, // this node
		{"10.244.1.10", "192.0.2.100", true, lb.NotGiven, false},
		{"10.244.1.10", "192.0.2.100", true, lb.Off, false},
		{"10.244.2.10", "192.0.2.100", false, lb.On, false},
		{"10.244.1.10", "10.244.1.10", true, lb.On, false}, // the backend itself
		{"10.244.1.10", "10.244.1.11", true, lb.On, false}, // its neighbour
		{"192.0.2.10", "192.0.2.100", true, lb.On, false},  // on the host's network
		{"10.244.1.10", "127.0.0.1", true, lb.On, false},
		{"10.244.1.10", "169.254.1.1", true, lb.On, false},
		{"10.244.1.10", "2001:db8::1", true, lb.On, false},
		{"10.244.1.10", "", true, lb.On, false},
	} {
		s := echo(1)
		s.Backends[0].Addr = netip.AddrPortFrom(netip.MustParseAddr(c.backend), 80)
		s.Backends[0].Local, s.Policies = c.local, &lb.Policies{Transparent: c.requested}
		table, err := lb.NewTable([]*lb.Service{&s}, node)
		if err != nil {
			t.Fatal(err)
		}
		var b Balancer
		b.Update(table)
		choice, err := b.Pick(Flow{Frontend: lb.Frontend{Protocol: s.Protocol, Addr: s.Addresses[0].Addr}})
		if err != nil {
			t.Fatal(err)
		}
		client, _ := netip.ParseAddr(c.client)
		if got := b.Transparent(choice, client); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
