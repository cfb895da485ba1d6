package nfnl

import (
	"encoding/binary"
	"errors"
	"iter"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// DumpTries is how often a list is asked for again that is changed while the
// kernel returns it.
const DumpTries = 10

// Request sends one request to a subsystem of nfnetlink, on a socket in the network
// namespace of the calling thread, and returns the attributes of each answer. attrs is
// serialised. The error is an errno, or one of the socket.
func Request(subsystem, command, flags int, family uint8, attrs []byte) (msgs [][]byte, err error) {
	err = Each(subsystem, command, flags, family, attrs, func() { msgs = nil }, func(msg []byte) {
		msgs = append(msgs, msg)
	})
	return msgs, err
}

// Each calls f with the attributes of each answer while the kernel gives them, and begin
// before the first, also when it starts anew since the list was changed meanwhile.
// f must not send requests. A part of what f is given keeps all of it in memory.
func Each(subsystem, command, flags int, family uint8, attrs []byte, begin func(), f func([]byte)) error {
	for try := 0; ; try++ {
		req := nl.NewNetlinkRequest(subsystem<<8|command, flags)
		req.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
		req.AddRawData(attrs)
		begin()
		err := req.ExecuteIter(unix.NETLINK_NETFILTER, 0, func(m []byte) bool {
			f(m[min(len(m), nl.SizeofNfgenmsg):])
			return true
		})
		if !errors.Is(err, nl.ErrDumpInterrupted) || try == DumpTries {
			return err
		}
	}
}

// Attrs returns netlink attributes, without their flags, up to the first that is broken.
func Attrs(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= unix.SizeofNlAttr {
			n := int(binary.NativeEndian.Uint16(b))
			if n < unix.SizeofNlAttr || n > len(b) {
				return
			}
			if !yield(binary.NativeEndian.Uint16(b[2:])&nl.NLA_TYPE_MASK, b[unix.SizeofNlAttr:n]) {
				return
			}
			b = b[min(len(b), (n+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1)):]
		}
	}
}

// Find returns the attribute of a kind among others, nil if it is not there.
func Find(b []byte, kind uint16) []byte {
	for k, value := range Attrs(b) {
		if k == kind {
			return value
		}
	}
	return nil
}

// String returns the string that an attribute among others holds.
func String(b []byte, kind uint16) string { return unix.ByteSliceToString(Find(b, kind)) }

// Uint returns the number that an attribute holds, of any length, in network order.
func Uint(value []byte) (n uint64) {
	for _, b := range value {
		n = n<<8 | uint64(b)
	}
	return n
}

// Attr appends one attribute. Netlink aligns to four bytes and is in host order
// but for what is marked as network order (netlink(7)).
func Attr(b []byte, kind int, value []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(4+len(value)))
	b = binary.NativeEndian.AppendUint16(b, uint16(kind))
	b = append(b, value...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// AttrString appends a string with the NUL that the kernel wants.
func AttrString(b []byte, kind int, s string) []byte { return Attr(b, kind, append([]byte(s), 0)) }

// AttrNested appends an attribute that holds attributes.
func AttrNested(b []byte, kind int, inner []byte) []byte {
	return Attr(b, kind|unix.NLA_F_NESTED, inner)
}

// Family returns the netfilter family of an address family.
func Family(ipv6 bool) uint8 {
	if ipv6 {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}

// NoSubsystem reports whether nfnetlink does not know the subsystem: its
// module is not there (nfnetlink_rcv_msg in the kernel's nfnetlink.c).
func NoSubsystem(err error) bool {
	return errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.EOPNOTSUPP) ||
		errors.Is(err, syscall.EPROTONOSUPPORT)
}
