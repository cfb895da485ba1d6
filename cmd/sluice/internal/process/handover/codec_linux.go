package handover

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/lb"
)

// errTruncated means that a message ends in the middle of something.
var errTruncated = errors.New("message is cut off")

// codec appends the fields of records to b and fds or, if it is reading, sets them from
// there, so that one function says what a record is in both directions. After the first
// error what is read is zero.
type codec struct {
	b       []byte
	fds     []int
	reading bool
	within  bool // a record, at whose end missing fields are zero
	err     error
}

// record passes a record after its length. A reader takes zero for fields that are missing at its end, and skips what
// it does not know there. So a new field goes to the end of its record, and carries no file descriptor.
func (c *codec) record(fields func()) {
	if !c.reading {
		start := len(c.b)
		fields()
		var head [binary.MaxVarintLen64]byte
		n := binary.PutUvarint(head[:], uint64(len(c.b)-start)<<1) // as number passes it
		c.b = slices.Insert(c.b, start, head[:n]...)
		return
	}
	n := c.length(0)
	if c.err != nil {
		return
	}
	rest, outer := c.b[n:], c.within
	c.b, c.within = c.b[:n:n], true
	if fields(); c.err == nil {
		c.b = rest
	}
	c.within = outer
}

func (c *codec) fail(err error) {
	if c.err == nil {
		c.err = err
	}
	c.b = nil
}

// more reports whether anything is left to read.
func (c *codec) more() bool { return c.err == nil && len(c.b) > 0 }

// number passes a number. Signed numbers cross in zigzag order, so that a negative one crosses too.
func number[T ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~int | ~int64](c *codec, v *T) {
	signed := ^T(0) < 0
	if !c.reading {
		u := uint64(*v)
		if signed {
			u = u<<1 ^ uint64(int64(*v)>>63)
		}
		c.b = binary.AppendUvarint(c.b, u)
		return
	}
	if c.within && len(c.b) == 0 {
		*v = 0
		return
	}
	u, n := binary.Uvarint(c.b)
	if signed {
		u = u>>1 ^ -(u & 1)
	}
	*v = T(u)
	switch {
	case n <= 0:
		c.fail(errTruncated)
		*v = 0
	case uint64(*v) != u:
		c.fail(fmt.Errorf("number %d is out of range", u))
		*v = 0
	default:
		c.b = c.b[n:]
	}
}

// bools are up to eight, in one byte.
func (c *codec) bools(all ...*bool) {
	var b byte
	for i, v := range all {
		if *v {
			b |= 1 << i
		}
	}
	number(c, &b)
	for i, v := range all {
		*v = b&(1<<i) != 0
	}
}

// length is the length of what follows, of which each element takes a byte at least.
func (c *codec) length(n int) int {
	if number(c, &n); c.reading && (n < 0 || n > len(c.b)) {
		c.fail(errTruncated)
		return 0
	}
	return n
}

// take returns the next n bytes, which are there.
func (c *codec) take(n int) []byte {
	out := c.b[:n]
	c.b = c.b[n:]
	return out
}

func (c *codec) bytes(v *[]byte) {
	if n := c.length(len(*v)); c.reading {
		*v = append([]byte(nil), c.take(n)...)
	} else {
		c.b = append(c.b, *v...)
	}
}

func (c *codec) string(v *string) {
	if n := c.length(len(*v)); c.reading {
		*v = string(c.take(n))
	} else {
		c.b = append(c.b, *v...)
	}
}

// addr is an address without its zone; an invalid one is of no bytes.
func (c *codec) addr(v *netip.Addr) {
	n := c.length(v.BitLen() / 8)
	if !c.reading {
		c.b, _ = v.WithZone("").AppendBinary(c.b) // never fails
	} else if n <= net.IPv6len {
		if err := v.UnmarshalBinary(c.take(n)); err != nil {
			c.fail(fmt.Errorf("decode address: %w", err))
		}
	} else {
		c.fail(fmt.Errorf("an address of %d bytes", n))
	}
}

func (c *codec) addrPort(v *netip.AddrPort) {
	ip, port := v.Addr(), v.Port()
	c.addr(&ip)
	number(c, &port)
	*v = netip.AddrPortFrom(ip, port)
}

// why is a word, or none.
func (c *codec) why(v *lb.Why) {
	word := v.String()
	if c.string(&word); c.reading {
		*v = lb.WhyOf(word)
	}
}

// list is a list, each element of which one passes.
func list[T any](c *codec, v *[]T, one func(*T)) {
	n := c.length(len(*v))
	if c.reading {
		*v = nil
	}
	for i := 0; i < n && c.err == nil; i++ {
		if c.reading {
			*v = append(*v, *new(T))
		}
		one(&(*v)[i])
	}
}

// records is a list of records.
func records[T any](c *codec, v *[]T, fields func(*T)) {
	list(c, v, func(one *T) { c.record(func() { fields(one) }) })
}

func (c *codec) id(v *lb.ID) {
	c.string(&v.Namespace)
	c.string(&v.Name)
	c.string(&v.Port)
	number(c, &v.Protocol)
	c.bools(&v.IPv6)
}

// fd is a file descriptor.
func (c *codec) fd(v *int) {
	switch {
	case !c.reading:
		c.fds = append(c.fds, *v)
	case len(c.fds) == 0:
		*v = -1
		c.fail(errors.New("file descriptors are missing"))
	default:
		*v, c.fds = c.fds[0], c.fds[1:]
	}
}

// fdOrNone is a file descriptor that may be -1.
func (c *codec) fdOrNone(v *int) {
	has := *v >= 0
	if c.bools(&has); has {
		c.fd(v)
	} else {
		*v = -1
	}
}

// instant passes a time on the clock of the loops as host time, since each process has a clock of its own. An age would
// not do: the giver sends a record again in the pause only if the record has changed.
func (c *codec) instant(v *int64) {
	t := shift(*v, hostClock())
	if number(c, &t); c.reading {
		*v = shift(t, -hostClock())
	}
}

// shift adds to an instant. Those that stand for none (0), always and never stay, and no other becomes one of them.
func shift(t, by int64) int64 {
	if t == 0 || t == math.MinInt64 || t == math.MaxInt64 {
		return t
	}
	sum := t + by
	switch {
	case t > 0 && by > 0 && sum <= 0 || sum == math.MaxInt64:
		return math.MaxInt64 - 1
	case t < 0 && by < 0 && sum >= 0 || sum == math.MinInt64:
		return math.MinInt64 + 1
	case sum == 0:
		return 1
	}
	return sum
}

// hostClock is what CLOCK_MONOTONIC is ahead of the clock of the loops.
var hostClock = sync.OnceValue(func() int64 { return monotonic() - eventloop.Now() })
