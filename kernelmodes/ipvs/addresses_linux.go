package ipvs

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/netfilter/nfnl"
)

// routeProtocol says which routes are ours ("ip route show table local proto 83"). No program
// of iproute2's rt_protos has this number.
const routeProtocol = 83

// loopback is the index of lo in every network namespace (LOOPBACK_IFINDEX in the kernel).
const loopback = 1

// routed returns the addresses of a family that our routes make this node's.
func routed(ipv6 bool) (out []netip.Addr, err error) {
	filter := &netlink.Route{Table: unix.RT_TABLE_LOCAL, Protocol: routeProtocol}
	const by = netlink.RT_FILTER_TABLE | netlink.RT_FILTER_PROTOCOL
	list, err := netlink.RouteListFiltered(int(nfnl.Family(ipv6)), filter, by)
	if err != nil {
		return nil, fmt.Errorf("list routes of addresses: %w", err)
	}
	for _, r := range list {
		if ip, ok := netip.AddrFromSlice(r.Dst.IP); ok {
			out = append(out, ip.Unmap())
		}
	}
	return out, nil
}

// route returns what makes an address this node's, so that ipvs sees its packets: a local
// route, and not an address of an interface. The node would send from that one, and its sockets
// would be cut off when it goes; this way they send from source, if that is valid.
func route(ip, source netip.Addr) *netlink.Route {
	r := &netlink.Route{
		LinkIndex: loopback, Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST,
		Protocol: routeProtocol, Dst: netlink.NewIPNet(ip.AsSlice()), Src: source.AsSlice(),
	}
	if ip.Is6() {
		r.Scope = unix.RT_SCOPE_UNIVERSE // IPv6 knows no other
	}
	return r
}

// deleteRoute deletes the route of an address; one that is not there is no error.
func deleteRoute(ip netip.Addr) error {
	err := netlink.RouteDel(route(ip, netip.Addr{}))
	if err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("delete route of address %s: %w", ip, err)
	}
	return nil
}
