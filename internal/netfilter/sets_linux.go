package netfilter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
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

// busyWait is how long destroying a set waits for rules that still hold it: nft
// frees deleted rules after a grace period, in the background.
const busyWait = 5 * time.Second

// setRequest sends a request about one set. Unlike the netlink library's own functions it
// takes many members in one message, and reads marks.
func setRequest(command int, set string, attrs []byte, begin func(), f func(nfnl.Value)) error {
	b := nfnl.Attr(nil, nl.IPSET_ATTR_PROTOCOL, nl.Uint8Attr(nl.IPSET_PROTOCOL))
	b = nfnl.AttrString(b, nl.IPSET_ATTR_SETNAME, set)
	err := nfnl.Request(unix.NFNL_SUBSYS_IPSET, command, nl.GetIpsetFlags(command), unix.AF_UNSPEC,
		append(b, attrs...), begin, f)
	var errno syscall.Errno
	if errors.As(err, &errno) && errno >= nl.IPSET_ERR_PRIVATE {
		err = nl.IPSetError(errno)
	}
	return err
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
	Timed bool // its members may have timeouts, as those of a Lease do
}

// Create makes the set, or leaves one of the same name as it is.
func (s Set) Create() error {
	o := netlink.IpsetCreateOptions{Replace: true, Skbinfo: s.Marks, Family: nfnl.Family(s.IPv6)}
	if s.Timed {
		o.Timeout = new(uint32)
	}
	if s.Type == BitmapPort {
		o.PortTo = math.MaxUint16
	} else {
		o.MaxElements = maxMembers
	}
	if err := netlink.IpsetCreate(s.Name, s.Type, o); err != nil && !errors.Is(err, syscall.EEXIST) {
		return fmt.Errorf("create set %s: %w", s.Name, err)
	}
	return nil
}

// Read returns what is really in the set, sorted.
func (s Set) Read() ([]Member, error) {
	var out []Member
	kind := s.Type
	err := setRequest(nl.IPSET_CMD_LIST, s.Name, nil, func() { out = nil }, func(m nfnl.Value) {
		kind = cmp.Or(m.Find(nl.IPSET_ATTR_TYPENAME).String(), kind)
		for _, v := range m.Find(nl.IPSET_ATTR_ADT).Attrs() {
			out = append(out, parseMember(v))
		}
	})
	if err == nil && kind != s.Type {
		err = fmt.Errorf("it is a %s, want %s: remove it with --cleanup", kind, s.Type)
	}
	if err != nil {
		return nil, fmt.Errorf("list set %s: %w", s.Name, err)
	}
	slices.SortFunc(out, Member.Compare)
	return out, nil
}

// parseMember reads an element of any type of set, also one that no plan has, such
// that it can be deleted.
func parseMember(member nfnl.Value) (e Member) {
	var ip, ip2 netip.Addr
	bits := -1
	for kind, v := range member.Attrs() {
		switch kind {
		case nl.IPSET_ATTR_IP:
			ip = parseIP(v)
		case nl.IPSET_ATTR_IP2:
			ip2 = parseIP(v)
		case nl.IPSET_ATTR_CIDR, nl.IPSET_ATTR_CIDR2:
			bits = int(v.Uint())
		case nl.IPSET_ATTR_PORT:
			e.Port = uint16(v.Uint())
		case nl.IPSET_ATTR_PROTO:
			e.Protocol = uint8(v.Uint())
		case nl.IPSET_ATTR_SKBMARK: // and its mask
			e.Mark = uint32(v.Uint() >> 32)
		}
	}
	switch {
	case ip2.IsValid():
		e.Addr, e.Net = ip, netip.PrefixFrom(ip2, bits)
	case bits >= 0:
		e.Net = netip.PrefixFrom(ip, bits)
	default:
		e.Addr = ip
	}
	return e
}

// parseIP reads an address, which is nested once more.
func parseIP(nested nfnl.Value) (ip netip.Addr) {
	for _, v := range nested.Attrs() {
		ip, _ = netip.AddrFromSlice(v.Bytes)
	}
	return ip
}

// Add adds members and returns the number of messages sent. A member that is there
// already is no error.
func (s Set) Add(list []Member) (uint64, error) { return s.change("add to", nl.IPSET_CMD_ADD, list) }

// Delete deletes members and returns the number of messages sent. A member that is
// not there is no error.
func (s Set) Delete(list []Member) (uint64, error) {
	return s.change("delete from", nl.IPSET_CMD_DEL, list)
}

func (s Set) change(verb string, command int, list []Member) (sent uint64, err error) {
	for part := range slices.Chunk(list, MembersPerMessage) {
		var adt []byte
		for i, e := range part {
			adt = nfnl.AttrNested(adt, nl.IPSET_ATTR_DATA, e.data(i))
		}
		n, err := s.send(verb, command, adt)
		if sent += n; err != nil {
			return sent, err
		}
	}
	return sent, nil
}

// send sends one message about members.
func (s Set) send(verb string, command int, members []byte) (sent uint64, err error) {
	b := nfnl.Attr(nil, nl.IPSET_ATTR_LINENO|unix.NLA_F_NET_BYTEORDER, nl.BEUint32Attr(0))
	if err := setRequest(command, s.Name, nfnl.AttrNested(b, nl.IPSET_ATTR_ADT, members), nil, nil); err != nil {
		return 1, fmt.Errorf("%s set %s: %w", verb, s.Name, err)
	}
	return 1, nil
}

// data returns the attributes of one member. The line number is what the kernel
// puts in its error.
func (e Member) data(line int) []byte {
	ip, cidr, net := nl.IPSET_ATTR_IP, nl.IPSET_ATTR_CIDR, e.Net.IsValid()
	var b []byte
	if e.Addr.IsValid() {
		b = nfnl.AttrNested(b, ip, ipData(e.Addr))
		b = nfnl.Attr(b, nl.IPSET_ATTR_PROTO, []byte{e.Protocol})
		ip, cidr = nl.IPSET_ATTR_IP2, nl.IPSET_ATTR_CIDR2
	}
	if net {
		b = nfnl.AttrNested(b, ip, ipData(e.Net.Addr()))
		b = nfnl.Attr(b, cidr, []byte{uint8(e.Net.Bits())})
	}
	if e.Addr.IsValid() || !net { // all types but hash:net
		b = nfnl.Attr(b, nl.IPSET_ATTR_PORT|unix.NLA_F_NET_BYTEORDER, nl.BEUint16Attr(e.Port))
	}
	if e.Mark != 0 {
		b = nfnl.Attr(b, nl.IPSET_ATTR_SKBMARK|unix.NLA_F_NET_BYTEORDER,
			append(nl.BEUint32Attr(e.Mark), nl.BEUint32Attr(math.MaxUint32)...))
	}
	return nfnl.Attr(b, nl.IPSET_ATTR_CADT_LINENO|unix.NLA_F_NET_BYTEORDER, nl.BEUint32Attr(uint32(line)))
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
	_, err := s.Remove(ctx)
	return err
}

// Remove is Destroy, and reports whether the set was there.
func (s Set) Remove(ctx context.Context) (there bool, err error) {
	// Before the kernel looks for what it is to destroy it waits for all its CPUs.
	err = setRequest(nl.IPSET_CMD_HEADER, s.Name, nil, nil, nil)
	if errors.Is(err, syscall.ENOENT) || nfnl.NoSubsystem(err) {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, busyWait)
	defer cancel()
	for {
		err := setRequest(nl.IPSET_CMD_DESTROY, s.Name, nil, nil, nil)
		switch {
		case err == nil, errors.Is(err, syscall.ENOENT):
			return true, nil
		case !errors.Is(err, nl.IPSetError(nl.IPSET_ERR_BUSY)):
			return false, fmt.Errorf("destroy set %s: %w", s.Name, err)
		}
		select {
		case <-ctx.Done():
			return false, fmt.Errorf("destroy set %s: %w", s.Name, err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}
