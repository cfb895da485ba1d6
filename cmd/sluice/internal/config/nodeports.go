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
	ranges             []netip.Prefix
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
// primary those of its Node object, of which the first of each family is used, or the
// first global one in local. The unspecified addresses stand for all.
func (n NodePortAddresses) Resolve(local, primary []netip.Addr) []netip.Addr {
	if !n.primary && !n.localhost && len(n.ranges) == 0 {
		return []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}
	}
	var out []netip.Addr
	for _, all := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		ipv6, everything := all.Is6(), netip.PrefixFrom(all, 0)
		if slices.Contains(n.ranges, everything) {
			out = append(out, all)
			continue
		}
		first := firstOf(ipv6, primary, local)
		for _, a := range local {
			wanted := n.primary && a == first || n.localhost && a.IsLoopback() ||
				slices.ContainsFunc(n.ranges, func(p netip.Prefix) bool { return p.Contains(a) })
			if a.Is6() == ipv6 && wanted && !slices.Contains(out, a) {
				out = append(out, a)
			}
		}
	}
	return out
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
