package netfilter

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// dumpTries is how often a list is asked for again that somebody changed while the
// kernel was giving it.
const dumpTries = 10

// request sends one request to a subsystem of nfnetlink, on a socket in
// the network namespace of the calling thread, and returns the attributes of
// each answer. attrs is serialised. The error is an errno, or one of the socket.
func request(subsystem, command, flags int, family uint8, attrs []byte) ([]map[uint16][]byte, error) {
	msgs, err := exchange(subsystem, command, flags, family, attrs)
	if err != nil {
		return nil, err
	}
	out := make([]map[uint16][]byte, 0, len(msgs))
	for _, m := range msgs {
		a, err := attributes(m)
		if err != nil {
			return nil, err
		}
		out = append(out, a)
	}
	return out, nil
}

// exchange returns the attributes of each answer as they came.
func exchange(subsystem, command, flags int, family uint8, attrs []byte) (msgs [][]byte, err error) {
	err = each(subsystem, command, flags, family, attrs, func() { msgs = nil }, func(msg []byte) error {
		msgs = append(msgs, msg)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return msgs, nil
}

// each calls f with the attributes of each answer while the kernel gives them, and begin
// before the first, also when it starts anew since somebody has changed the list meanwhile.
// f must not send requests; after an error of it, it is called no more. Who keeps what f is
// given keeps all that came with it.
func each(subsystem, command, flags int, family uint8, attrs []byte, begin func(), f func([]byte) error) error {
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
		if !errors.Is(err, nl.ErrDumpInterrupted) || try == dumpTries {
			return err
		}
	}
}

// attributes parses netlink attributes. Of equal ones the last stays.
func attributes(b []byte) (map[uint16][]byte, error) {
	out := make(map[uint16][]byte)
	err := eachAttr(b, func(kind uint16, value []byte) { out[kind] = value })
	return out, err
}

// eachAttr calls f with each netlink attribute, without its flags. It allocates
// nothing, since sets have many.
func eachAttr(b []byte, f func(kind uint16, value []byte)) error {
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

// nested returns the attribute of a kind among others, nil if it is not there.
func nested(b []byte, kind uint16) []byte {
	var out []byte
	eachAttr(b, func(k uint16, value []byte) {
		if k == kind {
			out = value
		}
	})
	return out
}

// attr appends one attribute. Netlink aligns to four bytes and is in host order
// but for what is marked as network order (netlink(7)).
func attr(b []byte, kind int, value []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(4+len(value)))
	b = binary.NativeEndian.AppendUint16(b, uint16(kind))
	b = append(b, value...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// attrString appends a string with the NUL that the kernel wants.
func attrString(b []byte, kind int, s string) []byte { return attr(b, kind, append([]byte(s), 0)) }

// attrNested appends an attribute that holds attributes.
func attrNested(b []byte, kind int, inner []byte) []byte {
	return attr(b, kind|unix.NLA_F_NESTED, inner)
}
