package redirect

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// maxMembers bounds a hash. It costs no memory until used; the kernel's default
// of 65,536 is less than what large clusters have.
const maxMembers = 1 << 20

// membersPerMessage keeps one message, of at most 84 bytes a member, below the
// 64 KiB that an attribute can hold.
const membersPerMessage = 700

// busyWait is how long destroying a set waits for rules that still hold it: nft
// frees deleted rules after a grace period, in the background.
const busyWait = 5 * time.Second

// setRequest sends a request about one set. Unlike the netlink library's own
// functions it takes many members in one message, and does not panic on an error
// that is not an errno.
func setRequest(command int, set string, attrs []byte) ([]map[uint16][]byte, error) {
	b := attr(nil, nl.IPSET_ATTR_PROTOCOL, []byte{nl.IPSET_PROTOCOL})
	b = attrString(b, nl.IPSET_ATTR_SETNAME, set)
	out, err := netfilterRequest(unix.NFNL_SUBSYS_IPSET, command, nl.GetIpsetFlags(command), unix.AF_UNSPEC, append(b, attrs...))
	var errno syscall.Errno
	if errors.As(err, &errno) && errno >= nl.IPSET_ERR_PRIVATE {
		err = nl.IPSetError(errno)
	}
	return out, err
}

// createSet makes a set, or leaves one of the same name as it is.
func (s shape) createSet(name string) error {
	kind, family, revision := setType(name), s.family(), uint8(0)
	var data []byte
	switch kind {
	case bitmapPort:
		family = unix.NFPROTO_UNSPEC
		data = attr(data, nl.IPSET_ATTR_PORT_FROM|unix.NLA_F_NET_BYTEORDER, []byte{0, 0})
		data = attr(data, nl.IPSET_ATTR_PORT_TO|unix.NLA_F_NET_BYTEORDER, []byte{0xff, 0xff})
	case hashIPPort, hashIPPortNet:
		revision = 1 // the first that knows SCTP (kernel 2.6.39)
		fallthrough
	default:
		data = attr(data, nl.IPSET_ATTR_MAXELEM|unix.NLA_F_NET_BYTEORDER, binary.BigEndian.AppendUint32(nil, maxMembers))
	}
	b := attrString(nil, nl.IPSET_ATTR_TYPENAME, kind)
	b = attr(b, nl.IPSET_ATTR_REVISION, []byte{revision})
	b = attr(b, nl.IPSET_ATTR_FAMILY, []byte{family})
	_, err := setRequest(nl.IPSET_CMD_CREATE, s.set(name), attrNested(b, nl.IPSET_ATTR_DATA, data))
	if err != nil && !errors.Is(err, syscall.EEXIST) {
		return fmt.Errorf("create set %s: %w", s.set(name), err)
	}
	return nil
}

// readSet returns what is really in a set, sorted.
func (s shape) readSet(name string) ([]member, error) {
	msgs, err := setRequest(nl.IPSET_CMD_LIST, s.set(name), nil)
	if err != nil {
		return nil, fmt.Errorf("list set %s: %w", s.set(name), err)
	}
	var out []member
	var broken error
	for _, m := range msgs {
		if kind, ok := m[nl.IPSET_ATTR_TYPENAME]; ok && unix.ByteSliceToString(kind) != setType(name) {
			return nil, fmt.Errorf("list set %s: it is a %s, want %s: remove it with --cleanup", s.set(name), unix.ByteSliceToString(kind), setType(name))
		}
		err := eachAttr(m[nl.IPSET_ATTR_ADT], func(_ uint16, v []byte) {
			e, err := parseMember(v)
			broken = errors.Join(broken, err)
			out = append(out, e)
		})
		if err := errors.Join(err, broken); err != nil {
			return nil, fmt.Errorf("list set %s: %w", s.set(name), err)
		}
	}
	slices.SortFunc(out, member.compare)
	return out, nil
}

// parseMember reads an element of any type of set, also one that no plan has, such
// that it can be deleted.
func parseMember(b []byte) (member, error) {
	var e member
	var ip, ip2 netip.Addr
	bits := -1
	err := eachAttr(b, func(kind uint16, v []byte) {
		switch {
		case kind == nl.IPSET_ATTR_IP:
			ip = parseIP(v)
		case kind == nl.IPSET_ATTR_IP2:
			ip2 = parseIP(v)
		case (kind == nl.IPSET_ATTR_CIDR || kind == nl.IPSET_ATTR_CIDR2) && len(v) == 1:
			bits = int(v[0])
		case kind == nl.IPSET_ATTR_PORT && len(v) == 2:
			e.port = binary.BigEndian.Uint16(v)
		case kind == nl.IPSET_ATTR_PROTO && len(v) == 1:
			e.protocol = v[0]
		}
	})
	switch {
	case ip2.IsValid():
		e.addr, e.net = ip, netip.PrefixFrom(ip2, bits)
	case bits >= 0:
		e.net = netip.PrefixFrom(ip, bits)
	default:
		e.addr = ip
	}
	return e, err
}

// parseIP reads an address, which is nested once more.
func parseIP(b []byte) (ip netip.Addr) {
	eachAttr(b, func(_ uint16, v []byte) { ip, _ = netip.AddrFromSlice(v) })
	return ip
}

// changeSet adds or deletes members and returns the number of messages sent. A
// member that is there already, or not, is no error.
func (s shape) changeSet(command int, name string, list []member) (uint64, error) {
	var sent uint64
	for len(list) > 0 {
		n := min(len(list), membersPerMessage)
		var adt []byte
		for i, e := range list[:n] {
			adt = attrNested(adt, nl.IPSET_ATTR_DATA, e.data(i))
		}
		list = list[n:]
		b := attr(nil, nl.IPSET_ATTR_LINENO|unix.NLA_F_NET_BYTEORDER, []byte{0, 0, 0, 0})
		_, err := setRequest(command, s.set(name), attrNested(b, nl.IPSET_ATTR_ADT, adt))
		sent++
		if err != nil {
			verb := map[int]string{nl.IPSET_CMD_ADD: "add to", nl.IPSET_CMD_DEL: "delete from"}[command]
			return sent, fmt.Errorf("%s set %s: %w", verb, s.set(name), err)
		}
	}
	return sent, nil
}

// data returns the attributes of one member. The line number is what the kernel
// puts in its error.
func (e member) data(line int) []byte {
	var b []byte
	if e.addr.IsValid() {
		b = attrNested(b, nl.IPSET_ATTR_IP, ipData(e.addr))
		b = attr(b, nl.IPSET_ATTR_PROTO, []byte{e.protocol})
	}
	switch {
	case e.net.IsValid() && e.addr.IsValid():
		b = attrNested(b, nl.IPSET_ATTR_IP2, ipData(e.net.Addr()))
		b = attr(b, nl.IPSET_ATTR_CIDR2, []byte{uint8(e.net.Bits())})
	case e.net.IsValid():
		b = attrNested(b, nl.IPSET_ATTR_IP, ipData(e.net.Addr()))
		b = attr(b, nl.IPSET_ATTR_CIDR, []byte{uint8(e.net.Bits())})
	}
	if e.addr.IsValid() || !e.net.IsValid() { // all types but hash:net
		b = attr(b, nl.IPSET_ATTR_PORT|unix.NLA_F_NET_BYTEORDER, binary.BigEndian.AppendUint16(nil, e.port))
	}
	return attr(b, nl.IPSET_ATTR_CADT_LINENO|unix.NLA_F_NET_BYTEORDER, binary.BigEndian.AppendUint32(nil, uint32(line)))
}

func ipData(ip netip.Addr) []byte {
	kind := nl.IPSET_ATTR_IPADDR_IPV4
	if ip.Is6() {
		kind = nl.IPSET_ATTR_IPADDR_IPV6
	}
	return attr(nil, kind|unix.NLA_F_NET_BYTEORDER, ip.AsSlice())
}

// createSets makes all sets that are not there.
func (s shape) createSets() error {
	for _, name := range setOrder {
		if err := s.createSet(name); err != nil {
			return err
		}
	}
	return nil
}

// readSets returns what is really in all sets.
func (s shape) readSets() (sets, error) {
	all := make(sets, len(setOrder))
	for _, name := range setOrder {
		m, err := s.readSet(name)
		if err != nil {
			return nil, err
		}
		all[name] = m
	}
	return all, nil
}

// destroySets removes all sets. Sets that are not there, and a kernel without
// sets, are no error.
func (s shape) destroySets(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, busyWait)
	defer cancel()
	var errs []error
	for _, name := range setOrder {
		errs = append(errs, destroySet(ctx, s.set(name)))
	}
	return errors.Join(errs...)
}

func destroySet(ctx context.Context, name string) error {
	for {
		_, err := setRequest(nl.IPSET_CMD_DESTROY, name, nil)
		switch {
		case err == nil, errors.Is(err, syscall.ENOENT), noSubsystem(err):
			return nil
		case !errors.Is(err, nl.IPSetError(nl.IPSET_ERR_BUSY)):
			return fmt.Errorf("destroy set %s: %w", name, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("destroy set %s: %w", name, err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// noSubsystem reports whether nfnetlink does not know what was spoken to: its
// module is not there (nfnetlink_rcv_msg in the kernel's nfnetlink.c).
func noSubsystem(err error) bool {
	return errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.EPROTONOSUPPORT)
}
