package proxyproto

import (
	"encoding/binary"
	"hash/crc32"
	"net/netip"
	"strconv"
)

// Version is one of the protocol's. The zero Version is none.
type Version uint8

// The versions.
const (
	V1 Version = iota + 1
	V2
)

// The types of TLVs (section 2.2). TypeService, the first of those for applications, is the Service's namespace/name.
const (
	TypeCRC32C   = 0x03
	TypeUniqueID = 0x05
	TypeService  = 0xe0
)

const (
	// MaxLen is how long no header is: both addresses of IPv6 and every TLV as long as it may be.
	MaxLen = fixedLen + 36 + 3*tlvLen + maxUniqueID + 2*maxName + 1 + crc32.Size

	fixedLen    = 16 // signature, version and command, family, length
	tlvLen      = 3  // type and length of a TLV
	maxUniqueID = 128
	maxName     = 63 // of a namespace, and of a Service
)

// signature begins every header of version 2.
const signature = "\r\n\r\n\x00\r\nQUIT\n"

// Header is what one says. Addresses of different families, as none is, make it say that the client is not known.
type Header struct {
	Source      netip.AddrPort // the client
	Destination netip.AddrPort // that it has asked
	Datagram    bool           // of UDP, and for version 2 only: the header of each datagram

	// For version 2. What is empty is left out; what is too long (128 and 63 bytes) is cut off.

	UniqueID        []byte
	Namespace, Name string // of the Service
}

// IDLen is the length of an identifier of IDs.
const IDLen = 32

// IDs makes unique identifiers of connections. It is for one goroutine.
type IDs struct {
	Maker uint64 // which no other has: a random number
	made  uint64
}

// Append appends one of 32 hexadecimal digits, as logs show it.
func (i *IDs) Append(b []byte) []byte {
	i.made++
	for _, v := range [...]uint64{i.Maker, i.made} {
		for shift := 60; shift >= 0; shift -= 4 {
			b = append(b, "0123456789abcdef"[v>>shift&0xf])
		}
	}
	return b
}

// Append appends the header to b.
func (h *Header) Append(b []byte, v Version) []byte {
	switch v {
	case V1:
		return h.append1(b)
	case V2:
		return h.append2(b)
	}
	return b
}

// AppendLocal appends the header of a connection that the proxy makes for itself, as a check.
func AppendLocal(b []byte, v Version) []byte {
	switch v {
	case V1:
		return append(b, "PROXY UNKNOWN\r\n"...)
	case V2:
		return append(append(b, signature...), 0x20, 0, 0, 0)
	}
	return b
}

// known reports whether both addresses are there, of one family.
func (h *Header) known() bool {
	src, dst := h.Source.Addr(), h.Destination.Addr()
	return src.IsValid() && dst.IsValid() && src.Is4() == dst.Is4()
}

func (h *Header) append1(b []byte) []byte {
	if !h.known() || h.Datagram {
		return AppendLocal(b, V1)
	}
	family := "PROXY TCP4 "
	if h.Source.Addr().Is6() {
		family = "PROXY TCP6 "
	}
	b = append(b, family...)
	b = append(h.Source.Addr().WithZone("").AppendTo(b), ' ')
	b = append(h.Destination.Addr().WithZone("").AppendTo(b), ' ')
	b = append(strconv.AppendUint(b, uint64(h.Source.Port()), 10), ' ')
	return append(strconv.AppendUint(b, uint64(h.Destination.Port()), 10), "\r\n"...)
}

func (h *Header) append2(b []byte) []byte {
	start := len(b)
	family := byte(0)
	if h.known() {
		family = 0x10
		if h.Source.Addr().Is6() {
			family = 0x20
		}
		if family |= 1; h.Datagram {
			family++
		}
	}
	b = append(append(b, signature...), 0x21, family, 0, 0)
	if family != 0 {
		for _, a := range [...]netip.Addr{h.Source.Addr(), h.Destination.Addr()} {
			if a.Is4() {
				four := a.As4()
				b = append(b, four[:]...)
			} else {
				sixteen := a.As16()
				b = append(b, sixteen[:]...)
			}
		}
		b = binary.BigEndian.AppendUint16(b, h.Source.Port())
		b = binary.BigEndian.AppendUint16(b, h.Destination.Port())
	}
	if id := h.UniqueID[:min(len(h.UniqueID), maxUniqueID)]; len(id) > 0 {
		b = append(append(b, TypeUniqueID, 0, byte(len(id))), id...)
	}
	if h.Name != "" {
		namespace, name := h.Namespace[:min(len(h.Namespace), maxName)], h.Name[:min(len(h.Name), maxName)]
		b = append(append(b, TypeService, 0, byte(len(namespace)+1+len(name))), namespace...)
		b = append(append(b, '/'), name...)
	}
	b = append(b, TypeCRC32C, 0, crc32.Size, 0, 0, 0, 0)
	header := b[start:]
	binary.BigEndian.PutUint16(header[fixedLen-2:], uint16(len(header)-fixedLen))
	binary.BigEndian.PutUint32(header[len(header)-crc32.Size:], crc32.Checksum(header, castagnoli))
	return b
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)
