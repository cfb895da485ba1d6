package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// NodePortAddresses says on which of the node's addresses node ports listen
// (--nodeport-addresses). The zero value means all.
type NodePortAddresses struct {
	primary, localhost bool
	noLoopback         bool // --iptables-localhost-nodeports=false in mode iptables
	ranges             []netip.Prefix
}

// DefaultNodePorts is for no list: all addresses, but in mode nftables the primary ones alone, as with kube-proxy
// (Backend.Init in its pkg/proxy/nftables).
func DefaultNodePorts(mode string) NodePortAddresses {
	return NodePortAddresses{primary: mode == ModeNFTables}
}

func parseNodePorts(list []string) (n NodePortAddresses, err error) {
	all := false
	for _, s := range list {
		switch s = strings.TrimSpace(s); s {
		case "primary":
			n.primary = true
		case "localhost":
			n.localhost = true
		case "all":
			all = true
		default:
			p, err := netip.ParsePrefix(s)
			if err != nil {
				return n, fmt.Errorf("%q is not an address range, nor one of primary, localhost and all: "+
					"give a list like 192.0.2.0/24,localhost", s)
			}
			n.ranges = append(n.ranges, p.Masked())
		}
	}
	if all {
		return NodePortAddresses{}, nil
	}
	return n, nil
}

// Resolve returns the addresses to listen on. local are the addresses of the node and
// primary those that may be its primary ones, the likeliest first: of each family the first
// one in local is used, or the first global one there. The unspecified addresses stand for all.
// A family for which nothing is given has all, as with kube-proxy; primary and localhost are of both.
func (n NodePortAddresses) Resolve(local, primary []netip.Addr) (out []netip.Addr) {
	for _, all := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		ipv6 := all.Is6()
		ranges := slices.DeleteFunc(slices.Clone(n.ranges), func(p netip.Prefix) bool { return p.Addr().Is6() != ipv6 })
		if !n.primary && !n.localhost && len(ranges) == 0 || slices.Contains(ranges, netip.PrefixFrom(all, 0)) {
			out = append(out, all)
			continue
		}
		first := firstOf(ipv6, primary, local)
		for _, a := range local {
			wanted := n.primary && a == first || n.localhost && a.IsLoopback() ||
				slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a) })
			if a.Is6() == ipv6 && wanted && !(n.noLoopback && a.IsLoopback()) {
				out = append(out, a)
			}
		}
	}
	return out
}

// Primary reports whether the primary addresses matter.
func (n NodePortAddresses) Primary() bool { return n.primary }

// loopback reports whether loopback addresses are asked for by name.
func (n NodePortAddresses) loopback() bool {
	return n.localhost || slices.ContainsFunc(n.ranges, func(p netip.Prefix) bool { return p.Addr().IsLoopback() })
}

// firstOf returns the first address of a family in primary that local has, or else
// the first global one in local.
func firstOf(ipv6 bool, primary, local []netip.Addr) netip.Addr {
	for _, a := range primary {
		if a.Is6() == ipv6 && slices.Contains(local, a) {
			return a
		}
	}
	for _, a := range local {
		if a.Is6() == ipv6 && a.IsGlobalUnicast() {
			return a
		}
	}
	return netip.Addr{}
}
