package netfilter

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

	"github.com/sluice-lb/sluice/internal/netfilter/nfnl"
)

// maxMembers bounds a hash. It costs no memory until used; the kernel's default
// of 65,536 is less than what large clusters have.
const maxMembers = 1 << 20

// MembersPerMessage keeps one message, of at most 92 bytes a member, below the
// 64 KiB that an attribute can hold.
const MembersPerMessage = 700

// withMarks is IPSET_FLAG_WITH_SKBINFO of linux/netfilter/ipset/ip_set.h.
const withMarks = 1 << 6

// busyWait is how long destroying a set waits for rules that still hold it: nft
// frees deleted rules after a grace period, in the background.
const busyWait = 5 * time.Second

// setRequest sends a request about one set. Unlike the netlink library's own
// functions it takes many members in one message, and does not panic on an error
// that is not an errno.
func setRequest(command int, set string, attrs []byte) ([]map[uint16][]byte, error) {
	b := nfnl.Attr(nil, nl.IPSET_ATTR_PROTOCOL, []byte{nl.IPSET_PROTOCOL})
	b = nfnl.AttrString(b, nl.IPSET_ATTR_SETNAME, set)
	out, err := nfnl.Request(unix.NFNL_SUBSYS_IPSET, command, nl.GetIpsetFlags(command), unix.AF_UNSPEC,
		append(b, attrs...))
	var errno syscall.Errno
	if errors.As(err, &errno) && errno >= nl.IPSET_ERR_PRIVATE {
		err = nl.IPSetError(errno)
	}
	return out, err
}

// Types of sets (ipset(8)).
const (
	HashIPPort    = "hash:ip,port"
	HashIPPortNet = "hash:ip,port,net"
	HashNet       = "hash:net"
	BitmapPort    = "bitmap:port"
)

// Set is an ipset.
type Set struct {
	Name  string // at most 31 characters (ipset(8))
	Type  string
	IPv6  bool // of its addresses, if it has any
	Marks bool // its members carry marks; only HashIPPort
}

// Create makes the set, or leaves one of the same name as it is.
func (s Set) Create() error {
	family, revision := nfnl.Family(s.IPv6), uint8(0)
	var data []byte
	switch s.Type {
	case BitmapPort:
		family = unix.NFPROTO_UNSPEC
		data = nfnl.Attr(data, nl.IPSET_ATTR_PORT_FROM|unix.NLA_F_NET_BYTEORDER, []byte{0, 0})
		data = nfnl.Attr(data, nl.IPSET_ATTR_PORT_TO|unix.NLA_F_NET_BYTEORDER, []byte{0xff, 0xff})
	case HashIPPort, HashIPPortNet:
		revision = 1 // the first that knows SCTP (kernel 2.6.39)
		fallthrough
	default:
		data = nfnl.Attr(data, nl.IPSET_ATTR_MAXELEM|unix.NLA_F_NET_BYTEORDER,
			binary.BigEndian.AppendUint32(nil, maxMembers))
	}
	if s.Marks {
		revision = 5 // the first that knows marks (kernel 3.19)
		data = nfnl.Attr(data, nl.IPSET_ATTR_CADT_FLAGS|unix.NLA_F_NET_BYTEORDER, binary.BigEndian.AppendUint32(nil,
			withMarks))
	}
	b := nfnl.AttrString(nil, nl.IPSET_ATTR_TYPENAME, s.Type)
	b = nfnl.Attr(b, nl.IPSET_ATTR_REVISION, []byte{revision})
	b = nfnl.Attr(b, nl.IPSET_ATTR_FAMILY, []byte{family})
	_, err := setRequest(nl.IPSET_CMD_CREATE, s.Name, nfnl.AttrNested(b, nl.IPSET_ATTR_DATA, data))
	if err != nil && !errors.Is(err, syscall.EEXIST) {
		return fmt.Errorf("create set %s: %w", s.Name, err)
	}
	return nil
}

// Read returns what is really in the set, sorted.
func (s Set) Read() ([]Member, error) {
	msgs, err := setRequest(nl.IPSET_CMD_LIST, s.Name, nil)
	if err != nil {
		return nil, fmt.Errorf("list set %s: %w", s.Name, err)
	}
	var out []Member
	var broken error
	for _, m := range msgs {
		if kind, ok := m[nl.IPSET_ATTR_TYPENAME]; ok && unix.ByteSliceToString(kind) != s.Type {
			return nil, fmt.Errorf("list set %s: it is a %s, want %s: remove it with --cleanup", s.Name,
				unix.ByteSliceToString(kind), s.Type)
		}
		err := nfnl.EachAttr(m[nl.IPSET_ATTR_ADT], func(_ uint16, v []byte) {
			e, err := parseMember(v)
			broken = errors.Join(broken, err)
			out = append(out, e)
		})
		if err := errors.Join(err, broken); err != nil {
			return nil, fmt.Errorf("list set %s: %w", s.Name, err)
		}
	}
	slices.SortFunc(out, Member.Compare)
	return out, nil
}

// parseMember reads an element of any type of set, also one that no plan has, such
// that it can be deleted.
func parseMember(b []byte) (Member, error) {
	var e Member
	var ip, ip2 netip.Addr
	bits := -1
	err := nfnl.EachAttr(b, func(kind uint16, v []byte) {
		switch {
		case kind == nl.IPSET_ATTR_IP:
			ip = parseIP(v)
		case kind == nl.IPSET_ATTR_IP2:
			ip2 = parseIP(v)
		case (kind == nl.IPSET_ATTR_CIDR || kind == nl.IPSET_ATTR_CIDR2) && len(v) == 1:
			bits = int(v[0])
		case kind == nl.IPSET_ATTR_PORT && len(v) == 2:
			e.Port = binary.BigEndian.Uint16(v)
		case kind == nl.IPSET_ATTR_PROTO && len(v) == 1:
			e.Protocol = v[0]
		case kind == nl.IPSET_ATTR_SKBMARK && len(v) == 8:
			e.Mark = binary.BigEndian.Uint32(v)
		}
	})
	switch {
	case ip2.IsValid():
		e.Addr, e.Net = ip, netip.PrefixFrom(ip2, bits)
	case bits >= 0:
		e.Net = netip.PrefixFrom(ip, bits)
	default:
		e.Addr = ip
	}
	return e, err
}

// parseIP reads an address, which is nested once more.
func parseIP(b []byte) (ip netip.Addr) {
	nfnl.EachAttr(b, func(_ uint16, v []byte) { ip, _ = netip.AddrFromSlice(v) })
	return ip
}

// Add adds members and returns the number of messages sent. A member that is there
// already is no error.
func (s Set) Add(list []Member) (uint64, error) { return s.change(nl.IPSET_CMD_ADD, list) }

// Delete deletes members and returns the number of messages sent. A member that is
// not there is no error.
func (s Set) Delete(list []Member) (uint64, error) { return s.change(nl.IPSET_CMD_DEL, list) }

func (s Set) change(command int, list []Member) (uint64, error) {
	var sent uint64
	for len(list) > 0 {
		n := min(len(list), MembersPerMessage)
		var adt []byte
		for i, e := range list[:n] {
			adt = nfnl.AttrNested(adt, nl.IPSET_ATTR_DATA, e.data(i))
		}
		list = list[n:]
		b := nfnl.Attr(nil, nl.IPSET_ATTR_LINENO|unix.NLA_F_NET_BYTEORDER, []byte{0, 0, 0, 0})
		_, err := setRequest(command, s.Name, nfnl.AttrNested(b, nl.IPSET_ATTR_ADT, adt))
		sent++
		if err != nil {
			verb := map[int]string{nl.IPSET_CMD_ADD: "add to", nl.IPSET_CMD_DEL: "delete from"}[command]
			return sent, fmt.Errorf("%s set %s: %w", verb, s.Name, err)
		}
	}
	return sent, nil
}

// data returns the attributes of one member. The line number is what the kernel
// puts in its error.
func (e Member) data(line int) []byte {
	var b []byte
	if e.Addr.IsValid() {
		b = nfnl.AttrNested(b, nl.IPSET_ATTR_IP, ipData(e.Addr))
		b = nfnl.Attr(b, nl.IPSET_ATTR_PROTO, []byte{e.Protocol})
	}
	switch {
	case e.Net.IsValid() && e.Addr.IsValid():
		b = nfnl.AttrNested(b, nl.IPSET_ATTR_IP2, ipData(e.Net.Addr()))
		b = nfnl.Attr(b, nl.IPSET_ATTR_CIDR2, []byte{uint8(e.Net.Bits())})
	case e.Net.IsValid():
		b = nfnl.AttrNested(b, nl.IPSET_ATTR_IP, ipData(e.Net.Addr()))
		b = nfnl.Attr(b, nl.IPSET_ATTR_CIDR, []byte{uint8(e.Net.Bits())})
	}
	if e.Addr.IsValid() || !e.Net.IsValid() { // all types but hash:net
		b = nfnl.Attr(b, nl.IPSET_ATTR_PORT|unix.NLA_F_NET_BYTEORDER, binary.BigEndian.AppendUint16(nil, e.Port))
	}
	if e.Mark != 0 {
		b = nfnl.Attr(b, nl.IPSET_ATTR_SKBMARK|unix.NLA_F_NET_BYTEORDER,
			binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, e.Mark), ^uint32(0)))
	}
	return nfnl.Attr(b, nl.IPSET_ATTR_CADT_LINENO|unix.NLA_F_NET_BYTEORDER, binary.BigEndian.AppendUint32(nil,
		uint32(line)))
}

func ipData(ip netip.Addr) []byte {
	kind := nl.IPSET_ATTR_IPADDR_IPV4
	if ip.Is6() {
		kind = nl.IPSET_ATTR_IPADDR_IPV6
	}
	return nfnl.Attr(nil, kind|unix.NLA_F_NET_BYTEORDER, ip.AsSlice())
}

// Destroy removes the set. One that is not there, and a kernel without sets, are no
// error. For one that rules hold it waits, a while.
func (s Set) Destroy(ctx context.Context) error {
	// Before the kernel looks for what it is to destroy it waits for all its CPUs.
	if _, err := setRequest(nl.IPSET_CMD_HEADER, s.Name, nil); errors.Is(err, syscall.ENOENT) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, busyWait)
	defer cancel()
	for {
		_, err := setRequest(nl.IPSET_CMD_DESTROY, s.Name, nil)
		switch {
		case err == nil, errors.Is(err, syscall.ENOENT), nfnl.NoSubsystem(err):
			return nil
		case !errors.Is(err, nl.IPSetError(nl.IPSET_ERR_BUSY)):
			return fmt.Errorf("destroy set %s: %w", s.Name, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("destroy set %s: %w", s.Name, err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}
