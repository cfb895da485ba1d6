package nft

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/netfilter/nfnl"
)

// Attributes that x/sys lacks (linux/netfilter/nf_tables.h).
const (
	nftaSetElemKeyEnd  = 10
	nftaSetDescConcat  = 2
	nftaSetFieldLen    = 1
	nftSetConcat       = 0x80
	nftDataVerdictType = 0xffffff00
)

// fieldTypes are the numbers of nft's data types, so that nft lists the sets
// (enum datatypes in its datatype.h).
var fieldTypes = map[Field]uint32{Protocol: 12, Port: 13, Mark: 19, Interface: 41, NFProto: 2}

// length returns how many bytes a field has, without padding.
func (f Field) length(ipv6 bool) int {
	switch f {
	case Address:
		if ipv6 {
			return 16
		}
		return 4
	case Port:
		return 2
	case Mark:
		return 4
	case Interface:
		return unix.IFNAMSIZ
	}
	return 1
}

func (f Field) datatype(ipv6 bool) uint32 {
	switch {
	case f != Address:
		return fieldTypes[f]
	case ipv6:
		return 8
	}
	return 7
}

// describe returns the number of a type of some fields, and the length of a value.
func describe(fields []Field, ipv6 bool) (datatype uint32, length int) {
	for _, f := range fields {
		datatype = datatype<<6 | f.datatype(ipv6)
		length += padded(f.length(ipv6))
	}
	if len(fields) == 1 {
		length = fields[0].length(ipv6)
	}
	return datatype, length
}

// padded rounds up to whole registers.
func padded(n int) int { return (n + 3) &^ 3 }

// Key returns registers with some values: netip.Addr, lb.Protocol's number as uint8, a port as
// uint16, a mark as uint32, the name of an interface.
func Key(values ...any) string {
	b := make([]byte, 0, 64) // the longest that nf_tables takes (NFT_DATA_VALUE_MAXLEN)
	for _, v := range values {
		switch v := v.(type) {
		case netip.Addr:
			b = appendAddr(b, v)
		case uint8:
			b = append(b, v)
		case uint16:
			b = binary.BigEndian.AppendUint16(b, v)
		case uint32:
			b = binary.NativeEndian.AppendUint32(b, v)
		case string:
			b = append(b, v...)
			b = append(b, make([]byte, unix.IFNAMSIZ-len(v))...)
		default:
			panic("nft: no field of a key")
		}
		for len(values) > 1 && len(b)%4 != 0 {
			b = append(b, 0)
		}
	}
	return string(b)
}

func appendAddr(b []byte, a netip.Addr) []byte {
	if a.Is4() {
		ip := a.As4()
		return append(b, ip[:]...)
	}
	ip := a.As16()
	return append(b, ip[:]...)
}

// packed is an element in one string, since a large table has a hundred thousand: how long key and end are, and all.
type packed string

func pack(e Element) packed {
	b := append(make([]byte, 0, 128), byte(len(e.Key)), byte(len(e.End))) // keys have 64 bytes at most
	return packed(append(append(append(b, e.Key...), e.End...), e.Data...))
}

func (p packed) element() Element {
	end := 2 + p[0]
	data := end + p[1]
	return Element{string(p[2:end]), string(p[end:data]), string(p[data:])}
}

// elementSize is about as many bytes as an element has in a message, given those of a packed one; rather more.
func elementSize(packed int) int { return packed + 44 }

// Range returns an element for the addresses of a prefix, after other fields of a key, or else after the address
// family.
func Range(p netip.Prefix, before ...any) Element {
	if len(before) == 0 {
		before = []any{nfnl.Family(p.Addr().Is6())}
	}
	first, last := append(slices.Clone(before), p.Masked().Addr()), append(slices.Clone(before), lastOf(p))
	return Element{Key: Key(first...), End: Key(last...)}
}

// lastOf returns the last address of a prefix.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// timed is an element of a dynamic set.
type timed struct {
	Element
	timeout, left time.Duration
}

// append appends an element as an attribute of a list.
func (s *Set) append(b []byte, e timed) []byte {
	start := len(b)
	b = append(b, 0, 0, 0, 0)
	b = appendData(b, unix.NFTA_SET_ELEM_KEY, e.Key)
	if e.End != "" {
		b = appendData(b, nftaSetElemKeyEnd, e.End)
	}
	switch {
	case s.Verdicts:
		data, verdict := len(b), len(b)+4
		b = append(b, 0, 0, 0, 0, 0, 0, 0, 0)
		b = nfnl.Attr(b, unix.NFTA_VERDICT_CODE, gotoCode[:])
		b = nfnl.AttrString(b, unix.NFTA_VERDICT_CHAIN, e.Data)
		closeAttr(b, verdict, unix.NFTA_DATA_VERDICT|unix.NLA_F_NESTED)
		closeAttr(b, data, unix.NFTA_SET_ELEM_DATA|unix.NLA_F_NESTED)
	case e.Data != "":
		b = appendData(b, unix.NFTA_SET_ELEM_DATA, e.Data)
	}
	if e.timeout > 0 {
		b = nfnl.Attr(b, unix.NFTA_SET_ELEM_TIMEOUT, milliseconds(e.timeout))
	}
	if e.left > 0 {
		b = nfnl.Attr(b, unix.NFTA_SET_ELEM_EXPIRATION, milliseconds(e.left))
	}
	closeAttr(b, start, unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED)
	return b
}

var gotoCode = [4]byte(be32(unix.NFT_GOTO & 0xffffffff))

func milliseconds(d time.Duration) []byte {
	return binary.BigEndian.AppendUint64(nil, uint64(d.Milliseconds()))
}

// closeAttr fills in the head of an attribute that began at start.
func closeAttr(b []byte, start, kind int) {
	binary.NativeEndian.PutUint16(b[start:], uint16(len(b)-start))
	binary.NativeEndian.PutUint16(b[start+2:], uint16(kind))
}

// appendData appends an attribute with a value in registers.
func appendData(b []byte, kind int, value string) []byte {
	n := len(value)
	b = binary.NativeEndian.AppendUint16(b, uint16(8+n))
	b = binary.NativeEndian.AppendUint16(b, uint16(kind|unix.NLA_F_NESTED))
	b = binary.NativeEndian.AppendUint16(b, uint16(4+n))
	b = binary.NativeEndian.AppendUint16(b, unix.NFTA_DATA_VALUE)
	b = append(b, value...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// decode reads an element.
func decode(m nfnl.Value) (e timed) {
	for kind, v := range m.Attrs() {
		switch kind {
		case unix.NFTA_SET_ELEM_KEY:
			e.Key = string(v.Find(unix.NFTA_DATA_VALUE).Bytes)
		case nftaSetElemKeyEnd:
			e.End = string(v.Find(unix.NFTA_DATA_VALUE).Bytes)
		case unix.NFTA_SET_ELEM_DATA:
			if e.Data = string(v.Find(unix.NFTA_DATA_VALUE).Bytes); e.Data == "" {
				e.Data = v.Find(unix.NFTA_DATA_VERDICT).Find(unix.NFTA_VERDICT_CHAIN).String()
			}
		case unix.NFTA_SET_ELEM_TIMEOUT:
			e.timeout = time.Duration(v.Uint()) * time.Millisecond
		case unix.NFTA_SET_ELEM_EXPIRATION:
			e.left = time.Duration(v.Uint()) * time.Millisecond
		}
	}
	return e
}
