package testbed

import (
	"fmt"
	"net/netip"
)

// Suffixes of addresses on the network of nodes and clients, and on pod networks.
const (
	routerSuffix   = 1
	nodeSuffix     = 10
	altSuffix      = 11
	remoteSuffix   = 20
	clientSuffix   = 100 // and up
	gatewaySuffix  = 1
	firstPodSuffix = 10
)

// Family returns the name of a family.
func Family(ipv6 bool) string {
	if ipv6 {
		return "IPv6"
	}
	return "IPv4"
}

// Unspecified is the address that stands for all of a family.
func Unspecified(ipv6 bool) netip.Addr {
	if ipv6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// VIP returns the n-th address of a Service: 10.96.0.1 or 2001:db8:96::1 for 1. No host owns one, so that all are
// routed to the node.
func VIP(ipv6 bool, n int) netip.Addr {
	if ipv6 {
		return netip.MustParseAddr(fmt.Sprintf("2001:db8:96::%x", n))
	}
	return netip.AddrFrom4([4]byte{10, 96, byte(n >> 8), byte(n)})
}

// PodNet is where the addresses of the node's pods are from.
func PodNet(ipv6 bool) netip.Prefix {
	if ipv6 {
		return netip.MustParsePrefix("2001:db8:244:1::/64")
	}
	return netip.MustParsePrefix("10.244.1.0/24")
}

// Gateway is the node's address towards its pods.
func Gateway(ipv6 bool) netip.Addr {
	v4, v6 := podAddrs(1, gatewaySuffix)
	if ipv6 {
		return v6
	}
	return v4
}

// Alone is the prefix that one address is.
func Alone(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// podAddrs returns the addresses of host n on the pod network of node.
func podAddrs(node, n int) (netip.Addr, netip.Addr) {
	return netip.MustParseAddr(fmt.Sprintf("10.244.%d.%d", node, n)),
		netip.MustParseAddr(fmt.Sprintf("2001:db8:244:%d::%d", node, n))
}
