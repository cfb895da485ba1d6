package redirect

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/lb"
)

// maxMembers bounds a hash. It costs no memory until used; the kernel's default
// of 65,536 is less than what large clusters have.
const maxMembers = 1 << 20

// membersPerMessage keeps one message, of 44 bytes a member, below the 64 KiB that
// an attribute can hold.
const membersPerMessage = 1000

// busyWait is how long destroying a set waits for rules that still hold it: nft
// frees deleted rules after a grace period, in the background.
const busyWait = 5 * time.Second

var ipProtocols = map[lb.Protocol]uint8{lb.TCP: unix.IPPROTO_TCP, lb.UDP: unix.IPPROTO_UDP, lb.SCTP: unix.IPPROTO_SCTP}

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
	family, revision := uint8(unix.NFPROTO_UNSPEC), uint8(0)
	var data []byte
	switch setTypes[name] {
	case hashIPPort:
		// Revision 1 is the first that knows SCTP (kernel 2.6.39).
		family, revision = s.family(), 1
		data = attr(data, nl.IPSET_ATTR_MAXELEM|unix.NLA_F_NET_BYTEORDER, binary.BigEndian.AppendUint32(nil, maxMembers))
	case bitmapPort:
		data = attr(data, nl.IPSET_ATTR_PORT_FROM|unix.NLA_F_NET_BYTEORDER, []byte{0, 0})
		data = attr(data, nl.IPSET_ATTR_PORT_TO|unix.NLA_F_NET_BYTEORDER, []byte{0xff, 0xff})
	}
	b := attrString(nil, nl.IPSET_ATTR_TYPENAME, setTypes[name])
	b = attr(b, nl.IPSET_ATTR_REVISION, []byte{revision})
	b = attr(b, nl.IPSET_ATTR_FAMILY, []byte{family})
	_, err := setRequest(nl.IPSET_CMD_CREATE, s.set(name), attrNested(b, nl.IPSET_ATTR_DATA, data))
	if err != nil && !errors.Is(err, syscall.EEXIST) {
		return fmt.Errorf("create set %s: %w", s.set(name), err)
	}
	return nil
}

// readSet returns what is really in a set.
func (s shape) readSet(name string) (map[member]bool, error) {
	msgs, err := setRequest(nl.IPSET_CMD_LIST, s.set(name), nil)
	if err != nil {
		return nil, fmt.Errorf("list set %s: %w", s.set(name), err)
	}
	out := make(map[member]bool)
	for _, m := range msgs {
		if kind, ok := m[nl.IPSET_ATTR_TYPENAME]; ok && nl.BytesToString(kind) != setTypes[name] {
			return nil, fmt.Errorf("list set %s: it is a %s, want %s: remove it with --cleanup", s.set(name), nl.BytesToString(kind), setTypes[name])
		}
		list, err := nl.ParseRouteAttr(m[nl.IPSET_ATTR_ADT])
		if err != nil {
			return nil, fmt.Errorf("list set %s: %w", s.set(name), err)
		}
		for _, a := range list {
			e, err := parseMember(a.Value)
			if err != nil {
				return nil, fmt.Errorf("list set %s: %w", s.set(name), err)
			}
			out[e] = true
		}
	}
	return out, nil
}

func parseMember(b []byte) (member, error) {
	a, err := attributes(b)
	if err != nil {
		return member{}, err
	}
	var e member
	if p := a[nl.IPSET_ATTR_PORT]; len(p) == 2 {
		e.port = binary.BigEndian.Uint16(p)
	}
	for proto, number := range ipProtocols {
		if v := a[nl.IPSET_ATTR_PROTO]; len(v) == 1 && v[0] == number {
			e.protocol = proto
		}
	}
	ip, err := attributes(a[nl.IPSET_ATTR_IP])
	if err != nil {
		return member{}, err
	}
	for _, v := range ip {
		e.addr, _ = netip.AddrFromSlice(v)
	}
	return e, nil
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
		kind := nl.IPSET_ATTR_IPADDR_IPV4
		if e.addr.Is6() {
			kind = nl.IPSET_ATTR_IPADDR_IPV6
		}
		b = attrNested(b, nl.IPSET_ATTR_IP, attr(nil, kind|unix.NLA_F_NET_BYTEORDER, e.addr.AsSlice()))
		b = attr(b, nl.IPSET_ATTR_PROTO, []byte{ipProtocols[e.protocol]})
	}
	b = attr(b, nl.IPSET_ATTR_PORT|unix.NLA_F_NET_BYTEORDER, binary.BigEndian.AppendUint16(nil, e.port))
	return attr(b, nl.IPSET_ATTR_CADT_LINENO|unix.NLA_F_NET_BYTEORDER, binary.BigEndian.AppendUint32(nil, uint32(line)))
}

// createSets makes all sets that are not there.
func (s shape) createSets() error {
	for name := range setTypes {
		if err := s.createSet(name); err != nil {
			return err
		}
	}
	return nil
}

// readSets returns what is really in all sets.
func (s shape) readSets() (sets, error) {
	all := make(sets, len(setTypes))
	for name := range setTypes {
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
	for name := range setTypes {
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
