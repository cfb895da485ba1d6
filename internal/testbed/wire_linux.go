package testbed

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// bridge is one that is being populated: it keeps a netlink socket open.
type bridge struct {
	host  *Host
	name  string
	link  netlink.Link
	addrs [2]netip.Addr
	nl    *netlink.Handle
}

// port is a bridge's end of a host's link.
type port struct {
	host   *Host // that has the bridge
	bridge string
	index  int // of the interface
}

// States of a bridge's port, BR_STATE_* in linux/if_bridge.h.
const (
	portDisabled   = 0
	portForwarding = 3
)

// netlink opens a netlink socket in the host, which the caller must close.
func (h *Host) netlink() (handle *netlink.Handle, err error) {
	err = h.Do(func() error {
		handle, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	return handle, err
}

// withLink calls f with a netlink socket in the host and one of its interfaces.
func (h *Host) withLink(name string, f func(*netlink.Handle, netlink.Link) error) error {
	handle, err := h.netlink()
	if err != nil {
		return fmt.Errorf("open netlink on host %s: %w", h.Name, err)
	}
	defer handle.Close()
	link, err := handle.LinkByName(name)
	if err == nil {
		err = f(handle, link)
	}
	if err != nil {
		return fmt.Errorf("set %s of host %s: %w", name, h.Name, err)
	}
	return nil
}

func (h *Host) setUp(name string) error {
	return h.withLink(name, func(handle *netlink.Handle, l netlink.Link) error { return handle.LinkSetUp(l) })
}

// addBridge makes a bridge with two addresses, up.
func (h *Host) addBridge(name string, a4, a6 netip.Addr) (*bridge, error) {
	handle, err := h.netlink()
	if err != nil {
		return nil, fmt.Errorf("open netlink on host %s: %w", h.Name, err)
	}
	b := &bridge{host: h, name: name, addrs: [2]netip.Addr{a4, a6}, nl: handle}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	attrs.HardwareAddr = hardwareAddr(a4) // or it would be that of some port, and change
	if err := handle.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
		b.close()
		return nil, fmt.Errorf("add bridge %s to host %s: %w", name, h.Name, err)
	}
	if b.link, err = handle.LinkByName(name); err == nil {
		err = handle.LinkSetUp(b.link)
	}
	if err == nil {
		err = h.addAddrs(name, a4, a6)
	}
	if err != nil {
		b.close()
		return nil, fmt.Errorf("set up bridge %s of host %s: %w", name, h.Name, err)
	}
	return b, nil
}

func (b *bridge) close() { b.nl.Close() }

// plug gives h its eth0, with its addresses, and connects it to the bridge by a
// veth pair. The pair is made across the namespaces: no interface is ever in the
// program's own. A frame may leave by the port it came from (hairpin), so that a
// pod can be sent to itself by the node.
func (b *bridge) plug(h *Host) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = fmt.Sprintf("veth%d", h.Addr4.As4()[3])
	attrs.MasterIndex = b.link.Attrs().Index
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerHardwareAddr = "eth0", hardwareAddr(h.Addr4)
	err := h.ns.with(func(fd int) error {
		veth.PeerNamespace = netlink.NsFd(fd)
		return b.nl.LinkAdd(veth)
	})
	if err != nil {
		return fmt.Errorf("plug host %s into bridge %s: %w", h.Name, b.name, err)
	}
	link, err := b.nl.LinkByName(attrs.Name)
	if err == nil {
		err = b.nl.LinkSetHairpin(link, true)
	}
	if err == nil {
		err = b.nl.LinkSetUp(link)
	}
	if err != nil {
		return fmt.Errorf("set up port %s of bridge %s: %w", attrs.Name, b.name, err)
	}
	h.port = &port{host: b.host, bridge: b.name, index: link.Attrs().Index}
	if err := h.setUp("eth0"); err != nil {
		return err
	}
	if err := h.checksumSCTP("eth0"); err != nil {
		return err
	}
	return h.addAddrs("eth0", h.Addr4, h.Addr6)
}

// unplug removes the interfaces of a node, and with them their other ends, addresses and routes.
func (h *Host) unplug() {
	handle, err := h.netlink()
	if err != nil {
		return // there are none
	}
	defer handle.Close()
	links, _ := handle.LinkList()
	for _, l := range links {
		if name := l.Attrs().Name; name == "eth0" || name == "cni0" || l.Attrs().MasterIndex != 0 {
			_ = handle.LinkDel(l) // it may have gone with its other end
		}
	}
}

// introduce writes the link-layer addresses of h and of the bridge's host into
// each other's tables.
func (b *bridge) introduce(h *Host) error {
	if err := b.host.addNeighbours(b.name, h); err != nil {
		return err
	}
	return h.addNeighbours("eth0", &Host{Name: b.host.Name, Addr4: b.addrs[0], Addr6: b.addrs[1]})
}

// addAddrs adds addresses with the prefix lengths of all networks of a cluster.
func (h *Host) addAddrs(dev string, addrs ...netip.Addr) error {
	var prefixes []netip.Prefix
	for _, a := range addrs {
		prefixes = append(prefixes, netip.PrefixFrom(a, prefixLen(a)))
	}
	return h.addPrefixes(dev, prefixes...)
}

func (h *Host) addPrefixes(dev string, prefixes ...netip.Prefix) error {
	return h.withLink(dev, func(handle *netlink.Handle, l netlink.Link) error {
		for _, p := range prefixes {
			if err := handle.AddrAdd(l, &netlink.Addr{IPNet: ipNet(p), Flags: unix.IFA_F_NODAD}); err != nil {
				return fmt.Errorf("add address %s: %w", p, err)
			}
			if !p.Addr().IsLinkLocalUnicast() { // those are local to a link, and no route shows them
				h.ns.addrs = append(h.ns.addrs, p.Addr())
			}
		}
		return nil
	})
}

// addNeighbours writes the link-layer address of peer's interface, for each of
// its addresses, to the table of h.
func (h *Host) addNeighbours(dev string, peer *Host) error {
	return h.withLink(dev, func(handle *netlink.Handle, l netlink.Link) error {
		for _, a := range []netip.Addr{peer.Addr4, peer.Addr6, peer.Alt4, peer.Alt6} {
			if !a.IsValid() {
				continue
			}
			family := netlink.FAMILY_V6
			if a.Is4() {
				family = netlink.FAMILY_V4
			}
			n := &netlink.Neigh{
				LinkIndex: l.Attrs().Index, Family: family, State: netlink.NUD_PERMANENT,
				IP: a.AsSlice(), HardwareAddr: hardwareAddr(peer.Addr4),
			}
			if err := handle.NeighSet(n); err != nil {
				return fmt.Errorf("add neighbour %s: %w", a, err)
			}
		}
		return nil
	})
}

// forward lets frames pass the port, or drops them, both ways. It is what the
// spanning tree protocol does to a port; netlink.Handle has no method for it.
func (p *port) forward(on bool) error {
	state := byte(portDisabled)
	if on {
		state = portForwarding
	}
	return p.host.Do(func() error {
		msg := nl.NewIfInfomsg(unix.AF_BRIDGE)
		msg.Index = int32(p.index)
		info := nl.NewRtAttr(unix.IFLA_PROTINFO|unix.NLA_F_NESTED, nil)
		info.AddRtAttr(nl.IFLA_BRPORT_STATE, []byte{state})
		req := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
		req.AddData(msg)
		req.AddData(info)
		_, err := req.Execute(unix.NETLINK_ROUTE, 0)
		return err
	})
}

// checksumSCTP makes the host compute SCTP's CRC32c itself. A veth pair would
// leave it out, since the receiving kernel trusts it; but a raw socket, which is
// how a user-space SCTP stack receives, would see packets with bad checksums. TCP
// and UDP keep their offloads: only the kernel reads them.
//
// netlink(7) has no words for it: it is ETHTOOL_MSG_FEATURES_SET of the kernel's
// networking/ethtool-netlink document, Linux 5.7. Older kernels are left alone.
func (h *Host) checksumSCTP(dev string) error {
	err := h.Do(func() error {
		family, err := genericFamily(unix.ETHTOOL_GENL_NAME)
		if err != nil {
			return nil
		}
		header := nl.NewRtAttr(unix.ETHTOOL_A_FEATURES_HEADER|unix.NLA_F_NESTED, nil)
		header.AddRtAttr(unix.ETHTOOL_A_HEADER_DEV_NAME, nl.ZeroTerminated(dev))
		wanted := nl.NewRtAttr(unix.ETHTOOL_A_FEATURES_WANTED|unix.NLA_F_NESTED, nil)
		bit := wanted.AddRtAttr(unix.ETHTOOL_A_BITSET_BITS|unix.NLA_F_NESTED, nil).
			AddRtAttr(unix.ETHTOOL_A_BITSET_BITS_BIT|unix.NLA_F_NESTED, nil)
		bit.AddRtAttr(unix.ETHTOOL_A_BITSET_BIT_NAME, nl.ZeroTerminated("tx-checksum-sctp")) // without a value: off
		req := nl.NewNetlinkRequest(family, unix.NLM_F_ACK)
		req.AddData(genericHeader{unix.ETHTOOL_MSG_FEATURES_SET, unix.ETHTOOL_GENL_VERSION})
		req.AddData(header)
		req.AddData(wanted)
		_, err = req.Execute(unix.NETLINK_GENERIC, 0)
		return err
	})
	if err != nil {
		return fmt.Errorf("switch off SCTP checksum offload on host %s: %w", h.Name, err)
	}
	return nil
}

// genericHeader is that of a message of generic netlink: a command, a version, and two
// bytes that are 0. The netlink library's own is two bytes long and read as if it were
// four (v1.3.1), which the race detector finds now and then.
type genericHeader [4]byte

// Len returns its length in bytes.
func (genericHeader) Len() int { return len(genericHeader{}) }

// Serialize returns what is sent.
func (h genericHeader) Serialize() []byte { return h[:] }

// genericFamily returns the number of a family of generic netlink.
func genericFamily(name string) (int, error) {
	req := nl.NewNetlinkRequest(nl.GENL_ID_CTRL, 0)
	req.AddData(genericHeader{nl.GENL_CTRL_CMD_GETFAMILY, nl.GENL_CTRL_VERSION})
	req.AddData(nl.NewRtAttr(nl.GENL_CTRL_ATTR_FAMILY_NAME, nl.ZeroTerminated(name)))
	answers, err := req.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil {
		return 0, fmt.Errorf("look up family %s of generic netlink: %w", name, err)
	}
	for _, answer := range answers {
		attrs, err := nl.ParseRouteAttr(answer[genericHeader{}.Len():])
		if err != nil {
			return 0, fmt.Errorf("read family %s of generic netlink: %w", name, err)
		}
		for _, a := range attrs {
			if a.Attr.Type == nl.GENL_CTRL_ATTR_FAMILY_ID && len(a.Value) >= 2 {
				return int(binary.NativeEndian.Uint16(a.Value)), nil
			}
		}
	}
	return 0, fmt.Errorf("look up family %s of generic netlink: the answer has no number", name)
}

// hardwareAddr is a locally administered address made of an IPv4 address.
func hardwareAddr(a netip.Addr) net.HardwareAddr {
	b := a.As4()
	return net.HardwareAddr{0x02, 0, b[0], b[1], b[2], b[3]}
}

func prefixLen(a netip.Addr) int {
	if a.Is4() {
		return 24
	}
	return 64
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
