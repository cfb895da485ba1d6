package netfilter

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// LocalAddrs returns the addresses of this node.
func LocalAddrs() (map[netip.Addr]bool, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list addresses of the node: %w", err)
	}
	local := make(map[netip.Addr]bool, len(addrs))
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok {
				local[ip.Unmap()] = true
			}
		}
	}
	return local, nil
}

// DeleteFlows deletes the conntrack entries of a family that a filter chooses and
// returns their number.
func DeleteFlows(ipv6 bool, f netlink.CustomConntrackFilter) (uint64, error) {
	family := netlink.InetFamily(unix.AF_INET)
	if ipv6 {
		family = unix.AF_INET6
	}
	n, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, f)
	if err != nil {
		return uint64(n), fmt.Errorf("delete conntrack entries of UDP frontends: %w", err)
	}
	return uint64(n), nil
}
