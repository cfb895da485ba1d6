package addresses

import (
	"bytes"
	"cmp"
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
)

// host changes addresses by rtnetlink(7).
type host struct{}

func (host) find(name string) (uint32, error) {
	device, err := findDevice(name)
	if err != nil {
		return 0, err
	}
	if device.Attrs().Flags&unix.IFF_UP == 0 {
		if err := netlink.LinkSetUp(device); err != nil {
			return 0, fmt.Errorf("set %s up: %w", device.Attrs().Name, err)
		}
	}
	return uint32(device.Attrs().Index), nil
}

// findDevice returns the device with the name, or our dummy device, which is
// made if need be, or the loopback device if this kernel has no dummy.
func findDevice(name string) (netlink.Link, error) {
	link, err := netlink.LinkByName(cmp.Or(name, addressDevice))
	if err == nil {
		return link, nil
	} else if name != "" {
		return nil, fmt.Errorf("find interface %s: %w", name, err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = addressDevice
	dummy := &netlink.Dummy{LinkAttrs: attrs}
	switch err = netlink.LinkAdd(dummy); {
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

func family(ipv6 bool) int {
	if ipv6 {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

func (host) list(ipv6 bool) ([]address, error) {
	var msgs [][]byte
	for try := 0; ; try++ {
		req := nl.NewNetlinkRequest(unix.RTM_GETADDR, unix.NLM_F_DUMP)
		req.AddData(nl.NewIfAddrmsg(family(ipv6)))
		var err error
		if msgs, err = req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWADDR); err == nil {
			break
		} else if !errors.Is(err, nl.ErrDumpInterrupted) || try == 10 { // they were changed meanwhile
			return nil, err
		}
	}
	out := make([]address, 0, len(msgs))
	for _, m := range msgs {
		at, err := parseAddress(m)
		if err != nil {
			return nil, err
		}
		out = append(out, at)
	}
	return out, nil
}

func parseAddress(m []byte) (at address, err error) {
	if len(m) < unix.SizeofIfAddrmsg {
		return at, fmt.Errorf("short netlink message of %d bytes", len(m))
	}
	attrs, err := nl.ParseRouteAttrAsMap(m[unix.SizeofIfAddrmsg:])
	if err != nil {
		return at, err
	}
	ip, ok := attrs[unix.IFA_LOCAL]
	if !ok {
		ip = attrs[unix.IFA_ADDRESS] // of a point-to-point link this is the other end
	}
	at.ip, _ = netip.AddrFromSlice(ip.Value)
	at.index = nl.DeserializeIfAddrmsg(m).Index
	proto, marked := attrs[ifaProto] // a kernel that keeps none cannot contradict
	at.ours = bytes.Equal(attrs[ifaRTPriority].Value, binary.NativeEndian.AppendUint32(nil, addressMetric)) &&
		(!marked || bytes.Equal(proto.Value, []byte{addressProto}))
	return at, nil
}

// add asks for an address with our marks.
func (host) add(at address) (exists bool, err error) {
	req := nl.NewNetlinkRequest(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
	msg := nl.NewIfAddrmsg(family(at.ip.Is6()))
	msg.Index, msg.Prefixlen = at.index, uint8(at.ip.BitLen())
	req.AddData(msg)
	attr := func(kind int, value []byte) { req.AddData(nl.NewRtAttr(kind, value)) }
	number := func(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }
	attr(unix.IFA_LOCAL, at.ip.AsSlice())
	attr(unix.IFA_ADDRESS, at.ip.AsSlice())
	attr(ifaRTPriority, number(addressMetric))
	attr(ifaProto, []byte{addressProto})
	if at.ip.Is4() {
		msg.Scope = unix.RT_SCOPE_HOST
	} else {
		// No duplicate detection: every node has the address. No route but the local one.
		attr(unix.IFA_FLAGS, number(unix.IFA_F_NODAD|unix.IFA_F_NOPREFIXROUTE))
		// Preferred for no time at all is deprecated.
		forever := nl.IfaCacheInfo{IfaCacheinfo: unix.IfaCacheinfo{Valid: ^uint32(0)}}
		attr(unix.IFA_CACHEINFO, forever.Serialize())
	}
	_, err = req.Execute(unix.NETLINK_ROUTE, 0)
	if errors.Is(err, unix.EEXIST) {
		return true, nil
	}
	return false, err
}

// ready has nothing to wait for: there is no duplicate detection.
func (host) ready(context.Context, []address) error { return nil }

func (host) remove(at address) error {
	err := netlink.AddrDel(nil, &netlink.Addr{IPNet: netlink.NewIPNet(at.ip.AsSlice()), LinkIndex: int(at.index)})
	if errors.Is(err, unix.EADDRNOTAVAIL) {
		return nil
	}
	return err
}

// busy asks sock_diag(7).
func (host) busy(ipv6 bool) (map[netip.Addr]bool, error) {
	const listen, closed, timeWait = 10, 7, 6 // tcp_states.h; none of them has anything to lose
	sockets, err := netlink.SocketDiagTCP(uint8(family(ipv6)))
	if err != nil {
		return nil, err
	}
	out := make(map[netip.Addr]bool)
	for _, s := range sockets {
		if ip, ok := netip.AddrFromSlice(s.ID.Source); ok && s.State != listen && s.State != closed &&
			s.State != timeWait {
			out[ip.Unmap()] = true
		}
	}
	return out, nil
}

// removeDevice removes the device that was made for service addresses.
func removeDevice() error {
	link, err := netlink.LinkByName(addressDevice)
	if err != nil || link.Type() != "dummy" || link.Attrs().Alias != addressDeviceAlias {
		return nil
	}
	if err := netlink.LinkDel(link); err != nil {
		return fmt.Errorf("remove device %s: %w", addressDevice, err)
	}
	return nil
}
