package nfqueue

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Packet is what a decision needs of a packet.
type Packet struct {
	Protocol uint8          // unix.IPPROTO_TCP, IPPROTO_UDP or IPPROTO_SCTP
	Client   netip.AddrPort // its source
	Asked    netip.AddrPort // its destination
	Mark     uint32

	// Stray: it is in the midst of a connection of TCP or an association of SCTP, and so not the first one of its flow,
	// though the kernel does not know that.
	Stray bool
}

// flow is what identifies the flow of a packet. Nothing else does.
type flow struct {
	protocol      uint8
	client, asked netip.AddrPort
}

func (p *Packet) flow() flow { return flow{p.Protocol, p.Client, p.Asked} }

// headers is how much of a packet is copied: the longest header of IPv4, or some of IPv6, and the beginning of what it
// carries.
const headers = 256

// Where headers of transport say whether a flow begins.
const (
	tcpFlags  = 13
	tcpSYN    = 1 << 1
	sctpChunk = 12 // the kind of the first one
	sctpINIT  = 1
)

// parse reads the headers of a packet. It is not ok if it does not show its ports, as where more headers precede them
// than are copied.
func (p *Packet) parse(b []byte) (ok bool) {
	if len(b) == 0 {
		return false
	}
	const least4, least6 = 20, 40
	var from, to netip.Addr
	switch {
	case b[0]>>4 == 4 && len(b) >= least4:
		p.Protocol = b[9]
		from, to = netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
		size := int(b[0]&15) * 4
		if size < least4 || size > len(b) || isFragment(b[6:], 0x1fff) {
			return false
		}
		b = b[size:]
	case b[0]>>4 == 6 && len(b) >= least6:
		p.Protocol = b[6]
		from, to = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
		if b, ok = p.skip(b[least6:]); !ok {
			return false
		}
	default:
		return false
	}
	least := sctpChunk + 1
	switch p.Protocol {
	case unix.IPPROTO_TCP:
		least = tcpFlags + 1
	case unix.IPPROTO_UDP:
		least = 4
	case unix.IPPROTO_SCTP:
	default:
		return false
	}
	if len(b) < least {
		return false
	}
	p.Client = netip.AddrPortFrom(from, binary.BigEndian.Uint16(b))
	p.Asked = netip.AddrPortFrom(to, binary.BigEndian.Uint16(b[2:]))
	p.Stray = p.Protocol == unix.IPPROTO_TCP && b[tcpFlags]&tcpSYN == 0 ||
		p.Protocol == unix.IPPROTO_SCTP && b[sctpChunk] != sctpINIT
	return true
}

// skip passes over the extension headers of IPv6 (RFC 8200, 4), which conntrack does as well.
func (p *Packet) skip(b []byte) (rest []byte, ok bool) {
	const least = 8
	for {
		size := 0
		switch p.Protocol {
		case unix.IPPROTO_HOPOPTS, unix.IPPROTO_ROUTING, unix.IPPROTO_DSTOPTS:
			if len(b) >= least {
				size = least * (1 + int(b[1]))
			}
		case unix.IPPROTO_AH:
			if len(b) >= least {
				size = 4 * (2 + int(b[1]))
			}
		case unix.IPPROTO_FRAGMENT:
			if size = least; len(b) >= least && isFragment(b[2:], 0xfff8) {
				return nil, false
			}
		default:
			return b, true
		}
		if size == 0 || size > len(b) {
			return nil, false
		}
		p.Protocol, b = b[0], b[size:]
	}
}

// isFragment reports whether a packet is another one than the first of its fragments, which begins with no ports.
// Conntrack has put together those that a node gets.
func isFragment(offset []byte, mask uint16) bool { return binary.BigEndian.Uint16(offset)&mask != 0 }
