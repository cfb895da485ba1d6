package nfnl

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// DumpTries is how often a list is asked for again that is changed while the
// kernel returns it.
const DumpTries = 10

// The library waits for an answer for a minute. The kernel gives it before a request returns, so
// that one which does not come is lost.
func init() { nl.SocketTimeoutTv.Sec = 5 }

// Request sends one request to a subsystem of nfnetlink, on a socket in the network
// namespace of the calling thread, and calls f with the attributes of each answer while the
// kernel gives them, and begin before the first, also when it starts anew since the list was
// changed meanwhile. Both may be nil. attrs is serialised. f must not send requests. The error
// is an errno, or one of the socket, or says that f has met broken attributes.
func Request(subsystem, command, flags int, family uint8, attrs []byte, begin func(), f func(Value)) error {
	return new(Conn).Request(subsystem, command, flags, family, attrs, begin, f)
}

// Dump is a request for a list, which ends with the context, too. Its error is that of the context then.
func Dump(ctx context.Context, subsystem, command int, family uint8, attrs []byte, begin func(), f func(Value)) error {
	return new(Conn).Dump(ctx, subsystem, command, family, attrs, begin, f)
}

// Dump is that function on the socket of c, which is of no more use after the context has ended.
func (c *Conn) Dump(ctx context.Context, subsystem, command int, family uint8, attrs []byte, begin func(),
	f func(Value)) error {
	return c.request(ctx, subsystem, command, unix.NLM_F_DUMP, family, attrs, begin, f)
}

// Request is that function on the socket of c.
func (c *Conn) Request(subsystem, command, flags int, family uint8, attrs []byte, begin func(), f func(Value)) error {
	return c.request(context.Background(), subsystem, command, flags, family, attrs, begin, f)
}

func (c *Conn) request(ctx context.Context, subsystem, command, flags int, family uint8, attrs []byte, begin func(),
	f func(Value)) error {
	for try := 0; ; try++ {
		req := nl.NewNetlinkRequest(subsystem<<8|command, flags)
		req.Sockets = c.sockets
		req.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
		req.AddRawData(attrs)
		if begin != nil {
			begin()
		}
		broken := 0
		err := req.ExecuteIter(unix.NETLINK_NETFILTER, 0, func(m []byte) bool {
			if f != nil {
				f(Value{m[min(len(m), nl.SizeofNfgenmsg):], &broken})
			}
			return ctx.Err() == nil
		})
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil && broken > 0:
			return fmt.Errorf("%d broken attributes in the answer to netlink message %#x", broken, subsystem<<8|command)
		case !errors.Is(err, nl.ErrDumpInterrupted), try == DumpTries:
			return err
		}
	}
}

// Value is what an attribute holds: bytes, which may be attributes themselves, as are those of
// an answer. A part of them keeps the whole answer in memory.
type Value struct {
	Bytes  []byte
	broken *int // attributes of the answer that were
}

// Parse returns attributes that are no answer.
func Parse(b []byte) Value { return Value{b, new(int)} }

// Next returns other attributes that are no answer, without an allocation.
func (v Value) Next(b []byte) Value { return Value{b, v.broken} }

// Attrs returns attributes, without their flags, up to the first that is broken.
func (v Value) Attrs() iter.Seq2[uint16, Value] {
	return func(yield func(uint16, Value) bool) {
		for b := v.Bytes; len(b) > 0; {
			n := 0
			if len(b) >= unix.SizeofNlAttr {
				n = int(binary.NativeEndian.Uint16(b))
			}
			if n < unix.SizeofNlAttr || n > len(b) {
				*v.broken++
				return
			}
			kind := binary.NativeEndian.Uint16(b[2:]) & nl.NLA_TYPE_MASK
			if !yield(kind, Value{b[unix.SizeofNlAttr:n], v.broken}) {
				return
			}
			b = b[min(len(b), (n+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1)):]
		}
	}
}

// Find returns the attribute of a kind among others, the zero Value if it is not there.
func (v Value) Find(kind uint16) Value {
	for k, value := range v.Attrs() {
		if k == kind {
			return value
		}
	}
	return Value{}
}

// String returns the string that an attribute holds.
func (v Value) String() string { return unix.ByteSliceToString(v.Bytes) }

// Uint returns the number that an attribute holds, of any length, in network order.
func (v Value) Uint() (n uint64) {
	for _, b := range v.Bytes {
		n = n<<8 | uint64(b)
	}
	return n
}

// Attr appends one attribute. Netlink aligns to four bytes and is in host order
// but for what is marked as network order (netlink(7)).
func Attr(b []byte, kind int, value []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(4+len(value)))
	b = binary.NativeEndian.AppendUint16(b, uint16(kind))
	return padded(append(b, value...))
}

// AttrString appends a string with the NUL that the kernel wants.
func AttrString(b []byte, kind int, s string) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(4+len(s)+1))
	b = binary.NativeEndian.AppendUint16(b, uint16(kind))
	return padded(append(append(b, s...), 0))
}

func padded(b []byte) []byte {
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

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
