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

	Ticket Ticket // for one that is held
}

// hash differs for most flows of a time.
func (p *Packet) hash() uint32 {
	ip := p.Client.Addr().As16()
	return uint32(ip[15]) ^ uint32(ip[14])*31 ^ uint32(p.Client.Port()) ^ uint32(p.Asked.Port())*7
}

// headers is how much of a packet is copied: the longest header of IPv4 and the ports.
const headers = 64

// parse reads the headers of a packet. It is not ok if ports are not where they are without IPv6 extension headers.
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
		if size < least4 || size > len(b) {
			return false
		}
		b = b[size:]
	case b[0]>>4 == 6 && len(b) >= least6:
		p.Protocol = b[6]
		from, to = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
		b = b[least6:]
	default:
		return false
	}
	switch p.Protocol {
	case unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP:
	default:
		return false
	}
	if len(b) < 4 {
		return false
	}
	p.Client = netip.AddrPortFrom(from, binary.BigEndian.Uint16(b))
	p.Asked = netip.AddrPortFrom(to, binary.BigEndian.Uint16(b[2:]))
	return true
}
