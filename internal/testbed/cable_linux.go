package testbed

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// cable joins two ends by a veth pair, made across the namespaces.
func cable(a, b End) error {
	handle, err := a.Host.netlink()
	if err != nil {
		return fmt.Errorf("open netlink on host %s: %w", a.Host.Name, err)
	}
	defer handle.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = a.Name
	veth := netlink.NewVeth(attrs)
	veth.PeerName = b.Name
	err = b.Host.ns.with(func(fd int) error {
		veth.PeerNamespace = netlink.NsFd(fd)
		return handle.LinkAdd(veth)
	})
	if err != nil {
		return fmt.Errorf("lay cable from %s of host %s to %s of host %s: %w",
			a.Name, a.Host.Name, b.Name, b.Host.Name, err)
	}
	for _, end := range []End{a, b} {
		if err := end.Host.setUp(end.Name); err != nil {
			return err
		}
		if err := end.Host.checksumSCTP(end.Name); err != nil {
			return err
		}
		if err := end.Host.addPrefixes(end.Name, end.Addrs...); err != nil {
			return err
		}
	}
	return Poll(context.Background(), readyTimeout, "a cable", func() (bool, error) {
		for _, end := range []End{a, b} {
			if ready, err := end.ready(); err != nil || !ready {
				return false, err
			}
		}
		return true, nil
	})
}

// ready reports whether the interface carries packets and its addresses are of use.
func (e End) ready() (ready bool, err error) {
	err = e.Host.withLink(e.Name, func(_ *netlink.Handle, l netlink.Link) error {
		ready = l.Attrs().OperState == netlink.OperUp
		return nil
	})
	if err != nil || !ready {
		return false, err
	}
	return e.Host.addrsReady()
}

// route adds a route out of an interface.
func (h *Host) route(dev string, to netip.Prefix, via netip.Addr) error {
	return h.withLink(dev, func(handle *netlink.Handle, l netlink.Link) error {
		r := &netlink.Route{LinkIndex: l.Attrs().Index, Dst: ipNet(to)}
		if via.IsValid() {
			r.Gw = via.AsSlice()
		} else {
			r.Scope = unix.RT_SCOPE_LINK
		}
		if err := handle.RouteAdd(r); err != nil {
			return fmt.Errorf("add route to %s via %s: %w", to, via, err)
		}
		return nil
	})
}
