package ipvs

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/netfilter/conntrack"
)

const (
	// interfaceName is our interface's. The kernel takes what is for its addresses as
	// for this node, which is where ipvs looks at packets.
	interfaceName = "sluice-ipvs"
	probeName     = "sluice-ipvs-t" // tried at start and removed at once

	// peerSuffix names the other end of a veth.
	peerSuffix = "-p"
)

// devices are the types of interface that will do, best first: a dummy is for nothing
// else, while the others have a neighbour that must be there and say nothing.
var devices = []string{"dummy", "veth", "bridge"}

// newDevice returns an interface of a type.
func newDevice(name, kind string) netlink.Link {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	switch kind {
	case "veth":
		return &netlink.Veth{LinkAttrs: attrs, PeerName: name + peerSuffix}
	case "bridge":
		return &netlink.Bridge{LinkAttrs: attrs}
	}
	return &netlink.GenericLink{LinkAttrs: attrs, LinkType: kind}
}

// makeInterface makes an interface if there is none of its name, and brings it up. It
// returns its type as well.
func makeInterface(name string) (netlink.Link, string, error) {
	link, err := netlink.LinkByName(name)
	if missing(err) {
		var errs []error
		for _, kind := range devices {
			if err = netlink.LinkAdd(newDevice(name, kind)); err == nil || errors.Is(err, syscall.EEXIST) {
				break
			}
			errs = append(errs, fmt.Errorf("of type %s: %w", kind, err))
		}
		if err != nil && !errors.Is(err, syscall.EEXIST) {
			return nil, "", fmt.Errorf("make interface %s: %w", name, errors.Join(errs...))
		}
		link, err = netlink.LinkByName(name)
	}
	if err != nil {
		return nil, "", fmt.Errorf("find interface %s: %w", name, err)
	}
	for _, l := range []string{name, name + peerSuffix} {
		if l != name && link.Type() != "veth" {
			continue
		}
		if err := silence(l); err != nil {
			return nil, "", err
		}
	}
	if link.Attrs().Flags&net.FlagUp == 0 {
		link, err = netlink.LinkByName(name)
	}
	return link, link.Type(), err
}

// silence brings an interface up that is to have no addresses but those we give it,
// and to send nothing.
func silence(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find interface %s: %w", name, err)
	}
	if link.Attrs().Flags&net.FlagUp != 0 {
		return nil
	}
	// Without IPv6 in the kernel there is nothing to keep from making addresses.
	_ = netlink.LinkSetIP6AddrGenMode(link, addrGenNone)
	if err := netlink.LinkSetARPOff(link); err != nil {
		return fmt.Errorf("turn off ARP on interface %s: %w", name, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("bring interface %s up: %w", name, err)
	}
	return nil
}

// addrGenNone is IN6_ADDR_GEN_MODE_NONE of linux/if_link.h.
const addrGenNone = 1

// missing reports whether there is no such interface.
func missing(err error) bool {
	var not netlink.LinkNotFoundError
	return errors.As(err, &not)
}

// onInterface returns the addresses of a family that are this node's by way of our
// interface, and whether it is up.
func onInterface(ipv6 bool) (map[netip.Addr]bool, bool, error) {
	link, err := netlink.LinkByName(interfaceName)
	if missing(err) {
		return map[netip.Addr]bool{}, false, nil
	} else if err != nil {
		return nil, false, fmt.Errorf("find interface %s: %w", interfaceName, err)
	}
	family := netlink.FAMILY_V4
	if ipv6 {
		family = netlink.FAMILY_V6
	}
	filter := &netlink.Route{LinkIndex: link.Attrs().Index, Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL}
	list, err := netlink.RouteListFiltered(
		family, filter, netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE,
	)
	if err != nil {
		return nil, false, fmt.Errorf("list addresses of interface %s: %w", interfaceName, err)
	}
	out := make(map[netip.Addr]bool, len(list))
	for _, r := range list {
		if r.Dst == nil {
			continue
		}
		if ip, ok := netip.AddrFromSlice(r.Dst.IP); ok && !ip.IsLinkLocalUnicast() {
			out[ip.Unmap()] = true
		}
	}
	return out, link.Attrs().Flags&net.FlagUp != 0, nil
}

// address returns what makes an address this node's: a local route, and not an address
// of the interface. The node would send from that one, and its sockets would be cut off
// when it goes; this way they send from source, if that is valid.
func address(link netlink.Link, ip, source netip.Addr) *netlink.Route {
	r := &netlink.Route{
		LinkIndex: link.Attrs().Index, Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST,
		Dst: &net.IPNet{IP: ip.AsSlice(), Mask: net.CIDRMask(ip.BitLen(), ip.BitLen())},
	}
	if ip.Is6() {
		r.Scope = unix.RT_SCOPE_UNIVERSE // IPv6 knows no other
	}
	if source.IsValid() {
		r.Src = source.AsSlice()
	}
	return r
}

// addAddress makes an address this node's.
func addAddress(link netlink.Link, ip, source netip.Addr) error {
	if err := netlink.RouteReplace(address(link, ip, source)); err != nil {
		return fmt.Errorf("add address %s to interface %s: %w", ip, interfaceName, err)
	}
	return nil
}

// deleteAddress undoes that; one that is not there is no error.
func deleteAddress(link netlink.Link, ip netip.Addr) error {
	err := netlink.RouteDel(address(link, ip, netip.Addr{}))
	if err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("delete address %s from interface %s: %w", ip, interfaceName, err)
	}
	return nil
}

// sourceOf returns the first of some addresses that is on an interface of the node, for
// the node to send from.
func sourceOf(list []netip.Addr) (netip.Addr, error) {
	local, err := conntrack.LocalAddrs()
	if err != nil {
		return netip.Addr{}, err
	}
	for _, a := range list {
		if local[a] {
			return a, nil
		}
	}
	return netip.Addr{}, nil
}
