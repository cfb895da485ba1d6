package handover

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/sluice-lb/sluice/lb"
)

// errTruncated means that a message ends in the middle of something.
var errTruncated = errors.New("message is cut off")

// writer appends values to a message.
type writer struct{ b []byte }

func (w *writer) byte(v byte)              { w.b = append(w.b, v) }
func (w *writer) uint(v uint64)            { w.b = binary.AppendUvarint(w.b, v) }
func (w *writer) duration(d time.Duration) { w.uint(uint64(max(d, 0))) }

func (w *writer) bytes(p []byte) {
	w.uint(uint64(len(p)))
	w.b = append(w.b, p...)
}

func (w *writer) string(s string) {
	w.uint(uint64(len(s)))
	w.b = append(w.b, s...)
}

// addr writes an address without its zone; an invalid one is of no bytes.
func (w *writer) addr(a netip.Addr) {
	if a.Is4() {
		b := a.As4()
		w.bytes(b[:])
		return
	}
	if a.IsValid() {
		b := a.As16()
		w.bytes(b[:])
		return
	}
	w.byte(0)
}

func (w *writer) addrPort(a netip.AddrPort) {
	w.addr(a.Addr())
	w.uint(uint64(a.Port()))
}

func (w *writer) addrPorts(all []netip.AddrPort) {
	w.uint(uint64(len(all)))
	for _, a := range all {
		w.addrPort(a)
	}
}

func (w *writer) id(id lb.ID) {
	w.string(id.Namespace)
	w.string(id.Name)
	w.string(id.Port)
	w.byte(byte(id.Protocol))
	w.bool(id.IPv6)
}

func (w *writer) bool(v bool) {
	if v {
		w.byte(1)
		return
	}
	w.byte(0)
}

// reader takes values from a message. After the first error every value is zero.
type reader struct {
	b   []byte
	err error
}

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
	r.b = nil
}

// more reports whether anything is left.
func (r *reader) more() bool { return r.err == nil && len(r.b) > 0 }

func (r *reader) byte() byte {
	if len(r.b) == 0 {
		r.fail(errTruncated)
		return 0
	}
	v := r.b[0]
	r.b = r.b[1:]
	return v
}

func (r *reader) bool() bool { return r.byte() != 0 }

func (r *reader) uint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail(errTruncated)
		return 0
	}
	r.b = r.b[n:]
	return v
}

// below is uint for a value that must be smaller than a limit.
func (r *reader) below(limit uint64, what string) uint64 {
	v := r.uint()
	if v >= limit {
		r.fail(fmt.Errorf("%s %d is out of range", what, v))
		return 0
	}
	return v
}

func (r *reader) duration() time.Duration { return time.Duration(r.below(1<<62, "duration")) }

// count reads the length of a list, each element of which takes at least one byte.
func (r *reader) count() int { return int(r.below(uint64(len(r.b))+1, "count")) }

// bytes returns a part of the message.
func (r *reader) bytes() []byte {
	n := r.count()
	if n > len(r.b) { // the length itself took some of what it may count
		r.fail(errTruncated)
		return nil
	}
	out := r.b[:n:n]
	r.b = r.b[n:]
	return out
}

func (r *reader) string() string { return string(r.bytes()) }

func (r *reader) addr() netip.Addr {
	b := r.bytes()
	a, ok := netip.AddrFromSlice(b)
	if !ok && len(b) > 0 {
		r.fail(fmt.Errorf("an address of %d bytes", len(b)))
	}
	return a
}

func (r *reader) addrPort() netip.AddrPort {
	a := r.addr()
	port := uint16(r.below(1<<16, "port"))
	if !a.IsValid() {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(a, port)
}

func (r *reader) addrPorts() []netip.AddrPort {
	var out []netip.AddrPort
	for range r.count() {
		if r.err != nil {
			break
		}
		out = append(out, r.addrPort())
	}
	return out
}

func (r *reader) id() lb.ID {
	return lb.ID{Namespace: r.string(), Name: r.string(), Port: r.string(), Protocol: lb.Protocol(r.byte()),
		IPv6: r.bool()}
}
