package redirect

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/lb"
)

// TestUndefined: what a cluster IP has no port for is refused, other addresses of a ServiceCIDR are silent, and what is
// neither of them, or what another proxy translates, is not touched.
func TestUndefined(t *testing.T) {
	runVariants(t, append(setVariants(), nftVariants...), func(t *testing.T, v variant) {
		l := newLab(t)
		port := serveTCP(t, ":0")
		s := v.steerer()
		at := func(p lb.Protocol, n int, port uint16) lb.Frontend {
			return lb.Frontend{Protocol: p, Addr: netip.AddrPortFrom(vip(v.ipv6, n), port)}
		}
		node := lb.Frontend{Protocol: lb.TCP, Addr: netip.AddrPortFrom(nodeAddr[v.ipv6], 80)}
		u := Update{Host: Host{TCPPort: port}, Whole: true, Add: []Entry{
			{Frontend: at(lb.TCP, 1, 80), Action: Redirect, ClusterIP: true},
			{Frontend: at(lb.UDP, 2, 53), ClusterIP: true}, // another path forwards it
			{Frontend: at(lb.TCP, 3, 80)},                  // an external IP of such a Service
			{Frontend: node, ClusterIP: true},
		}}
		check(t, s.Sync(t.Context(), u))
		same := func(when string) {
			for _, who := range []string{"host", "pod", "node"} {
				l.expect(when, who, at(lb.TCP, 1, 80), "answered")
				l.expect(when, who, at(lb.TCP, 1, 81), "refused")
				l.expect(when, who, at(lb.UDP, 1, 80), "refused")
				l.expect(when, who, at(lb.TCP, 2, 53), "refused")
			}
		}
		same("without ServiceCIDRs")
		drops := func() bool {
			if v.nftables {
				list := output(t, "nft", "list", "set", map[bool]string{false: "ip", true: "ip6"}[v.ipv6], tableName, nftCIDRs)
				return strings.Contains(list, "elements")
			}
			return strings.Contains(savedBy(t, v.command), "sluice: no such Service")
		}
		if drops() {
			t.Error("addresses of no Service are dropped without ServiceCIDRs")
		}
		u.Host.ServiceCIDRs = []netip.Prefix{netip.PrefixFrom(vip(v.ipv6, 0), map[bool]int{false: 16, true: 112}[v.ipv6])}
		check(t, s.Sync(t.Context(), Update{Host: u.Host}))
		same("with a ServiceCIDR")
		l.expect("with a ServiceCIDR", "host", at(lb.TCP, 9, 80), "dropped")
		verified(t, s, true, "with a ServiceCIDR")
		if !drops() {
			t.Error("no rule drops what is for addresses of no Service")
		}
		// What another proxy translates is left alone.
		other := at(lb.TCP, 8, 80)
		v.nft(t, "add table "+v.family()+" theirs")
		v.nft(t, "add chain "+v.family()+" theirs nat { type nat hook prerouting priority -100 ; }")
		v.nft(t, fmt.Sprintf("add rule %s theirs nat %[1]s daddr %s tcp dport 80 redirect to :%d",
			v.family(), other.Addr.Addr(), port))
		l.expect("beside another proxy", "host", other, "answered")
	})
}
