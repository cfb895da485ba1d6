package addresses

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	// addressDevice is the dummy device that is made for service addresses; its alias
	// says so too, since only one with both is ever removed.
	addressDevice      = "sluice0"
	addressDeviceAlias = "service addresses of sluice"

	// The marks of our addresses. The protocol is the one to look for by hand ("ip
	// address show proto 83"), a kernel before 5.18 does not keep it.
	addressProto  = 83
	addressMetric = 0x534c55

	ifaRTPriority = 9  // IFA_RT_PRIORITY, linux/if_addr.h
	ifaProto      = 11 // IFA_PROTO

	forever = ^uint32(0) // lifetime in IFA_CACHEINFO
)

// netlinkAddresses is the addressHost of Linux.
type netlinkAddresses struct {
	ipv6  bool
	index uint32 // of the device; what it has of ours on others is found too
}

func newAddressHost(ipv6 bool, name string) (addressHost, error) {
	device, err := findAddressDevice(name)
	if err != nil {
		return nil, err
	}
	if device.Attrs().Flags&unix.IFF_UP == 0 {
		if err := netlink.LinkSetUp(device); err != nil {
			return nil, fmt.Errorf("set %s up: %w", device.Attrs().Name, err)
		}
	}
	return &netlinkAddresses{ipv6: ipv6, index: uint32(device.Attrs().Index)}, nil
}

// findAddressDevice returns the device with the name, or our dummy device, which is
// made if need be, or the loopback device if this kernel has no dummy.
func findAddressDevice(name string) (netlink.Link, error) {
	if name != "" {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return nil, fmt.Errorf("find interface %s: %w", name, err)
		}
		return link, nil
	}
	if link, err := netlink.LinkByName(addressDevice); err == nil {
		return link, nil
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = addressDevice
	dummy := &netlink.Dummy{LinkAttrs: attrs}
	err := netlink.LinkAdd(dummy)
	switch {
	case err == nil:
		if err := netlink.LinkSetAlias(dummy, addressDeviceAlias); err != nil {
			return nil, errors.Join(fmt.Errorf("mark %s as ours: %w", addressDevice, err), netlink.LinkDel(dummy))
		}
		return netlink.LinkByName(addressDevice)
	case errors.Is(err, unix.EOPNOTSUPP): // no such kind of device
		return netlink.LinkByName("lo")
	case errors.Is(err, unix.EPERM):
		return nil, fmt.Errorf("make device %s: %w: run as root, or with CAP_NET_ADMIN", addressDevice, err)
	}
	return nil, fmt.Errorf("make device %s: %w", addressDevice, err)
}

func (h *netlinkAddresses) list() (ours, others map[netip.Addr]struct{}, err error) {
	ours, others = make(map[netip.Addr]struct{}), make(map[netip.Addr]struct{})
	all, err := listAddresses(h.ipv6)
	if err != nil {
		return nil, nil, err
	}
	for _, e := range all {
		if e.ours && e.index == h.index {
			ours[e.ip] = struct{}{}
		} else if !e.ours {
			others[e.ip] = struct{}{}
		}
	}
	// Ours on another device, from a start with another --service-interface, would
	// be left over for good.
	for _, e := range all {
		if e.ours && e.index != h.index {
			if err := changeAddress(unix.RTM_DELADDR, 0, e.index, e.ip); err != nil &&
				!errors.Is(err, unix.EADDRNOTAVAIL) {
				return nil, nil, fmt.Errorf("remove %s: %w", e.ip, err)
			}
		}
	}
	return ours, others, nil
}

func (h *netlinkAddresses) add(ip netip.Addr) (exists bool, err error) {
	err = changeAddress(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL, h.index, ip)
	if errors.Is(err, unix.EEXIST) {
		return true, nil
	}
	return false, err
}

// ready has nothing to wait for: there is no duplicate detection.
func (h *netlinkAddresses) ready(context.Context, []netip.Addr) error { return nil }

func (h *netlinkAddresses) remove(ip netip.Addr) error {
	err := changeAddress(unix.RTM_DELADDR, 0, h.index, ip)
	if errors.Is(err, unix.EADDRNOTAVAIL) {
		return nil
	}
	return err
}

// busy asks sock_diag(7).
func (h *netlinkAddresses) busy() (map[netip.Addr]struct{}, error) {
	const listen, closed, timeWait = 10, 7, 6 // tcp_states.h; none of them has anything to lose
	out := make(map[netip.Addr]struct{})
	family := uint8(unix.AF_INET)
	if h.ipv6 {
		family = unix.AF_INET6
	}
	sockets, err := netlink.SocketDiagTCP(family)
	if err != nil {
		return nil, err
	}
	for _, s := range sockets {
		if ip, ok := netip.AddrFromSlice(s.ID.Source); ok && s.State != listen && s.State != closed &&
			s.State != timeWait {
			out[ip.Unmap()] = struct{}{}
		}
	}
	return out, nil
}

// addressEntry is one address of the host.
type addressEntry struct {
	index uint32
	ip    netip.Addr
	ours  bool
}

func listAddresses(ipv6 bool) ([]addressEntry, error) {
	family := unix.AF_INET
	if ipv6 {
		family = unix.AF_INET6
	}
	var msgs [][]byte
	for try := 0; ; try++ {
		req := nl.NewNetlinkRequest(unix.RTM_GETADDR, unix.NLM_F_DUMP)
		req.AddData(nl.NewIfAddrmsg(family))
		var err error
		if msgs, err = req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWADDR); err == nil {
			break
		} else if !errors.Is(err, nl.ErrDumpInterrupted) || try == 10 { // they were changed meanwhile
			return nil, fmt.Errorf("list addresses: %w", err)
		}
	}
	out := make([]addressEntry, 0, len(msgs))
	for _, m := range msgs {
		e, err := parseAddress(m)
		if err != nil {
			return nil, err
		}
		out = append(out, e)
	}
	return out, nil
}

func parseAddress(m []byte) (e addressEntry, err error) {
	if len(m) < unix.SizeofIfAddrmsg {
		return e, fmt.Errorf("list addresses: short netlink message of %d bytes", len(m))
	}
	attrs, err := nl.ParseRouteAttr(m[unix.SizeofIfAddrmsg:])
	if err != nil {
		return e, fmt.Errorf("list addresses: %w", err)
	}
	e.index = nl.DeserializeIfAddrmsg(m).Index
	var metric uint32
	proto := addressProto // a kernel that keeps none cannot contradict
	for _, a := range attrs {
		switch a.Attr.Type {
		case unix.IFA_ADDRESS:
			if !e.ip.IsValid() { // of a point-to-point link this is the other end
				e.ip, _ = netip.AddrFromSlice(a.Value)
			}
		case unix.IFA_LOCAL:
			e.ip, _ = netip.AddrFromSlice(a.Value)
		case ifaRTPriority:
			if len(a.Value) >= 4 {
				metric = binary.NativeEndian.Uint32(a.Value)
			}
		case ifaProto:
			if len(a.Value) > 0 {
				proto = int(a.Value[0])
			}
		}
	}
	e.ours = metric == addressMetric && proto == addressProto
	return e, nil
}

// changeAddress adds or removes one address of a device, with our marks.
func changeAddress(command, flags int, index uint32, ip netip.Addr) error {
	req := nl.NewNetlinkRequest(command, flags|unix.NLM_F_ACK)
	family := unix.AF_INET
	if ip.Is6() {
		family = unix.AF_INET6
	}
	msg := nl.NewIfAddrmsg(family)
	msg.Index, msg.Prefixlen = index, uint8(ip.BitLen())
	number := func(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.IFA_LOCAL, ip.AsSlice()))
	req.AddData(nl.NewRtAttr(unix.IFA_ADDRESS, ip.AsSlice()))
	if command == unix.RTM_NEWADDR {
		req.AddData(nl.NewRtAttr(ifaRTPriority, number(addressMetric)))
		req.AddData(nl.NewRtAttr(ifaProto, []byte{addressProto}))
		if ip.Is4() {
			msg.Scope = unix.RT_SCOPE_HOST
		} else {
			// No duplicate detection: every node has the address. No route but the local one.
			req.AddData(nl.NewRtAttr(unix.IFA_FLAGS, number(unix.IFA_F_NODAD|unix.IFA_F_NOPREFIXROUTE)))
			// struct ifa_cacheinfo: preferred, valid, created, changed. Preferred for no
			// time at all is deprecated.
			req.AddData(nl.NewRtAttr(unix.IFA_CACHEINFO, bytes.Join([][]byte{number(0), number(forever), number(0),
				number(0)},
				nil)))
		}
	}
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// cleanup removes what is ours, on whatever device.
func cleanup(ipv6 bool) error {
	all, err := listAddresses(ipv6)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range all {
		if !e.ours {
			continue
		}
		if err := changeAddress(unix.RTM_DELADDR, 0, e.index, e.ip); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			errs = append(errs, fmt.Errorf("remove %s: %w", e.ip, err))
		}
	}
	link, err := netlink.LinkByName(addressDevice)
	if err == nil && link.Type() == "dummy" && link.Attrs().Alias == addressDeviceAlias {
		if err := netlink.LinkDel(link); err != nil {
			errs = append(errs, fmt.Errorf("remove device %s: %w", addressDevice, err))
		}
	}
	return errors.Join(errs...)
}
