package node

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// TestDefaultAddrs: the address on the interface of the default route, not the lowest one; none without such a route.
func TestDefaultAddrs(t *testing.T) {
	hosts := testbed.NewHostsT(t, "node", "near", "far")
	node := hosts[0]
	for i, peer := range hosts[1:] {
		net := byte(i + 1)
		at := func(host byte) []netip.Prefix {
			return []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, net, host}), 24)}
		}
		check(t, testbed.Cable(testbed.End{Host: node, Name: peer.Name, Addrs: at(1)},
			testbed.End{Host: peer, Name: "up", Addrs: at(2)}))
	}
	var got []netip.Addr
	ask := func() []netip.Addr {
		t.Helper()
		node.DoT(t, func() error { got = DefaultAddrs(); return nil })
		return got
	}
	if got := ask(); len(got) != 0 {
		t.Errorf("addresses without a default route: %v", got)
	}
	check(t, node.Route("far", netip.MustParsePrefix("0.0.0.0/0"), netip.MustParseAddr("10.0.2.2")))
	if got := ask(); !slices.Equal(got, []netip.Addr{netip.MustParseAddr("10.0.2.1")}) {
		t.Errorf("addresses %v, want that on the way to the world", got)
	}
}
