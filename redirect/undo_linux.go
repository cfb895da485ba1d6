package redirect

import (
	"net/netip"
	"slices"
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
