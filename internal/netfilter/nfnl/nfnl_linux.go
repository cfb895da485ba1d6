package nfnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// DumpTries is how often a list is asked for again that is changed while the
// kernel returns it.
const DumpTries = 10

// Request sends one request to a subsystem of nfnetlink, on a socket in
// the network namespace of the calling thread, and returns the attributes of
// Each answer. attrs is serialised. The error is an errno, or one of the socket.
func Request(subsystem, command, flags int, family uint8, attrs []byte) ([]map[uint16][]byte, error) {
	msgs, err := Exchange(subsystem, command, flags, family, attrs)
	if err != nil {
		return nil, err
	}
	out := make([]map[uint16][]byte, 0, len(msgs))
	for _, m := range msgs {
		a, err := Attributes(m)
		if err != nil {
			return nil, err
		}
		out = append(out, a)
	}
	return out, nil
}

// Exchange returns the attributes of each answer as they came.
func Exchange(subsystem, command, flags int, family uint8, attrs []byte) (msgs [][]byte, err error) {
	err = Each(subsystem, command, flags, family, attrs, func() { msgs = nil }, func(msg []byte) error {
		msgs = append(msgs, msg)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return msgs, nil
}

// Each calls f with the attributes of each answer while the kernel gives them, and begin
// before the first, also when it starts anew since the list was changed meanwhile.
// f must not send requests; after an error of it, it is called no more. A part of what f is
// given keeps all of it in memory.
func Each(subsystem, command, flags int, family uint8, attrs []byte, begin func(), f func([]byte) error) error {
	for try := 0; ; try++ {
		req := nl.NewNetlinkRequest(subsystem<<8|command, flags)
		req.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
		req.AddRawData(attrs)
		var failed error
		begin()
		err := req.ExecuteIter(unix.NETLINK_NETFILTER, 0, func(m []byte) bool {
			if len(m) < nl.SizeofNfgenmsg {
				failed = fmt.Errorf("short netlink message of %d bytes", len(m))
			} else {
				failed = f(m[nl.SizeofNfgenmsg:])
			}
			return failed == nil
		})
		if failed != nil {
			return failed
		}
		if !errors.Is(err, nl.ErrDumpInterrupted) || try == DumpTries {
			return err
		}
	}
}

// Attributes parses netlink attributes. Of equal ones the last stays.
func Attributes(b []byte) (map[uint16][]byte, error) {
	out := make(map[uint16][]byte)
	err := EachAttr(b, func(kind uint16, value []byte) { out[kind] = value })
	return out, err
}

// EachAttr calls f with each netlink attribute, without its flags. It allocates
// nothing, since sets have many.
func EachAttr(b []byte, f func(kind uint16, value []byte)) error {
	for len(b) > 0 {
		if len(b) < unix.SizeofNlAttr {
			return fmt.Errorf("parse netlink attributes: %d bytes left over", len(b))
		}
		n := int(binary.NativeEndian.Uint16(b))
		if n < unix.SizeofNlAttr || n > len(b) {
			return fmt.Errorf("parse netlink attributes: length %d in %d bytes", n, len(b))
		}
		f(binary.NativeEndian.Uint16(b[2:])&nl.NLA_TYPE_MASK, b[unix.SizeofNlAttr:n])
		b = b[min(len(b), (n+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1)):]
	}
	return nil
}

// Nested returns the attribute of a kind among others, nil if it is not there.
func Nested(b []byte, kind uint16) []byte {
	var out []byte
	EachAttr(b, func(k uint16, value []byte) {
		if k == kind {
			out = value
		}
	})
	return out
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
