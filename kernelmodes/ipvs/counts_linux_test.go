package ipvs

import (
	"net/netip"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
)

// TestCounts: the kernel's counts are what clients have asked, of each Service and endpoint, also where clients on this
// node have a virtual server of their own.
func TestCounts(t *testing.T) {
	t.Parallel()
	n := newNode(t, testbed.Config{})
	for _, v6 := range []bool{false, true} {
		read := func() map[lb.Frontend][2]Counts {
			found := make(map[lb.Frontend][2]Counts)
			n.Node.DoT(t, func() error {
				return ReadCounts(v6, func(of lb.Frontend, all Counts, each map[netip.AddrPort]Counts) {
					var sum Counts
					for _, one := range each {
						sum.Connections += one.Connections
						sum.PacketsIn += one.PacketsIn
						sum.BytesIn += one.BytesIn
					}
					found[of] = [2]Counts{all, sum}
				})
			})
			return found
		}
		s := simple("web", vip(v6, 80).String(), 80, lb.TCP, n.Serving(2, lb.TCP, v6, 8080)...)
		s.Backends[0].Local = true
		external := netip.AddrPortFrom(vip(v6, 81), 80)
		also(&s, external, lb.ExternalIP, true)
		n.Sync(s)
		if found := read(); len(found) != 0 {
			t.Errorf("before anyone has asked there is %v", found)
		}
		for range 5 {
			ask(n.Client, lb.TCP, s.Addresses[0].Addr)
		}
		for range 3 {
			ask(n.Node, lb.TCP, external)
		}
		found, want := read(), map[netip.AddrPort]uint64{s.Addresses[0].Addr: 5, external: 3}
		testbed.Eventually(t, "the kernel sums up what its processors have counted", func() bool {
			found = read()
			for at, connections := range want {
				all := found[lb.Frontend{Protocol: lb.TCP, Addr: at}]
				if all[0].Connections != connections || all[1].Connections != connections {
					return false
				}
			}
			return true
		})
		if len(found) != len(want) {
			t.Errorf("there are %d virtual servers with connections, want %d: %v", len(found), len(want), found)
		}
		for at, connections := range want {
			all := found[lb.Frontend{Protocol: lb.TCP, Addr: at}]
			if all[0].Connections != connections || all[1].Connections != connections ||
				all[0].PacketsIn < 3*connections || all[0].BytesIn <= 20*all[0].PacketsIn || all[0].BytesOut == 0 ||
				all[1].PacketsIn != all[0].PacketsIn || all[1].BytesIn != all[0].BytesIn {
				t.Errorf("%s has counted %+v, and its endpoints %+v; want %d connections", at, all[0], all[1], connections)
			}
		}
		n.Sync()
	}
}
