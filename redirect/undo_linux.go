package redirect

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-lb/sluice/internal/netfilter"
)

// oldChains are the chains of kube-proxy's removed userspace mode, by table.
// KUBE-* chains of other modes belong to whoever runs them.
var oldChains = map[string][]string{
	"nat":    {"KUBE-PORTALS-CONTAINER", "KUBE-PORTALS-HOST", "KUBE-NODEPORT-CONTAINER", "KUBE-NODEPORT-HOST"},
	"filter": {"KUBE-NODEPORT-NON-LOCAL"},
}

// isOld reports whether a chain is one of them.
func isOld(table, chain string) bool { return slices.Contains(oldChains[table], chain) }

// removable reports whether Cleanup removes a chain. The mark goes later, with
// the table it marks.
func removable(table, chain string) bool {
	if chain == netfilter.MarkChain {
		return false
	}
	return strings.HasPrefix(chain, chainPrefix) || isOld(table, chain)
}

// unspecified is the address of node ports.
func unspecified(ipv6 bool) netip.Addr {
	if ipv6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// steeredUDP returns the UDP frontends that are steered by rules of ours, as
// printed by iptables -S or iptables-save.
func steeredUDP(rules []string, ipv6 bool) []netip.AddrPort {
	var out []netip.AddrPort
	for _, rule := range rules {
		w := netfilter.Words(rule)
		if len(w) < 2 || w[0] != "-A" || !strings.HasPrefix(w[1], chainPrefix+chainUDP) {
			continue
		}
		addr := unspecified(ipv6)
		var port uint64
		for i := 2; i+1 < len(w); i++ {
			switch w[i] {
			case "-d":
				if p, err := netip.ParsePrefix(w[i+1]); err == nil {
					addr = p.Addr()
				}
			case "--dport":
				port, _ = strconv.ParseUint(w[i+1], 10, 16)
			}
		}
		if port != 0 {
			out = append(out, netip.AddrPortFrom(addr, uint16(port)))
		}
	}
	return out
}
