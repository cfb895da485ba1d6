package mmsg

import (
	"encoding/binary"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Control is the control messages of one received message.
type Control []byte

// Find returns the data of the first control message of a kind, nil if there is none with
// size bytes.
func (c Control) Find(level, kind int32, size int) []byte {
	for len(c) >= unix.SizeofCmsghdr {
		m, data, rest, err := unix.ParseOneSocketControlMessage(c)
		if err != nil {
			return nil // it is cut off
		}
		if m.Level == level && m.Type == kind && len(data) >= size {
			return data
		}
		c = rest
	}
	return nil
}

// LocalAddr returns the address of this host that a message was sent to (IP_PKTINFO, ip(7)).
//
// Of in_pktinfo it is ipi_spec_dst, which replies can be sent from; it differs
// from the destination in the header for broadcasts only.
func (c Control) LocalAddr() (addr netip.Addr, ok bool) {
	if info := c.Find(unix.IPPROTO_IP, unix.IP_PKTINFO, unix.SizeofInet4Pktinfo); info != nil {
		return netip.AddrFrom4([4]byte(info[4:8])), true
	}
	if info := c.Find(unix.IPPROTO_IPV6, unix.IPV6_PKTINFO, unix.SizeofInet6Pktinfo); info != nil {
		return netip.AddrFrom16([16]byte(info[:16])), true
	}
	return netip.Addr{}, false
}

// SegmentSize returns the length of the datagrams of a GRO batch but for the last, in bytes; 0
// if the message is one datagram (UDP_GRO, udp(7)).
func (c Control) SegmentSize() int {
	if size := c.Find(unix.SOL_UDP, unix.UDP_GRO, 4); size != nil {
		return int(int32(binary.NativeEndian.Uint32(size)))
	}
	return 0
}

// TrafficClass returns the traffic class of an IPv6 packet (IPV6_RECVTCLASS, ipv6(7)); 0 if
// none was reported.
func (c Control) TrafficClass() byte {
	if class := c.Find(unix.IPPROTO_IPV6, unix.IPV6_TCLASS, 4); class != nil {
		return byte(binary.NativeEndian.Uint32(class))
	}
	return 0
}

// Hops returns how many hops a packet had left when it arrived: its TTL, or hop limit (IP_RECVTTL, ip(7);
// IPV6_RECVHOPLIMIT, ipv6(7)). False: it was not reported.
func (c Control) Hops() (n int, ok bool) {
	hops := c.Find(unix.IPPROTO_IP, unix.IP_TTL, 4)
	if hops == nil {
		hops = c.Find(unix.IPPROTO_IPV6, unix.IPV6_HOPLIMIT, 4)
	}
	if hops == nil {
		return 0, false
	}
	return int(int32(binary.NativeEndian.Uint32(hops))), true
}

// QueuedError returns the error that a message of the error queue is about, 0 if it is about
// none, and whether ICMP has reported it (struct sock_extended_err, ip(7)).
func (c Control) QueuedError() (errno unix.Errno, icmp bool) {
	e := c.queued()
	if e == nil {
		return 0, false
	}
	return unix.Errno(e.Errno), e.Origin == unix.SO_EE_ORIGIN_ICMP || e.Origin == unix.SO_EE_ORIGIN_ICMP6
}

// HopsExceeded reports whether a message of the error queue had no hops left on its way: ICMP says so (Time Exceeded,
// RFC 792 and RFC 4443).
func (c Control) HopsExceeded() bool {
	const timeExceeded, timeExceeded6 = 11, 3
	e := c.queued()
	return e != nil && (e.Origin == unix.SO_EE_ORIGIN_ICMP && e.Type == timeExceeded ||
		e.Origin == unix.SO_EE_ORIGIN_ICMP6 && e.Type == timeExceeded6)
}

// queued returns what a message of the error queue is about; nil: it is none.
func (c Control) queued() *unix.SockExtendedErr {
	const size = int(unsafe.Sizeof(unix.SockExtendedErr{}))
	data := c.Find(unix.IPPROTO_IP, unix.IP_RECVERR, size)
	if data == nil {
		data = c.Find(unix.IPPROTO_IPV6, unix.IPV6_RECVERR, size)
	}
	if data == nil {
		return nil
	}
	return (*unix.SockExtendedErr)(unsafe.Pointer(&data[0]))
}

// PutLocalAddr writes the control message that makes a message leave from addr, and
// returns its length. scope is the interface of a link-local peer; 0 leaves it to the routes.
func PutLocalAddr(c []byte, addr netip.Addr, scope uint32) int {
	if addr.Is4() {
		data, length := Put(c, unix.IPPROTO_IP, unix.IP_PKTINFO, unix.SizeofInet4Pktinfo)
		ip := addr.As4()
		copy(data[4:], ip[:])
		return length
	}
	data, length := Put(c, unix.IPPROTO_IPV6, unix.IPV6_PKTINFO, unix.SizeofInet6Pktinfo)
	ip := addr.As16()
	copy(data, ip[:])
	binary.NativeEndian.PutUint32(data[16:], scope)
	return length
}

// PutTrafficClass writes the control message that gives a packet its traffic class (DSCP and
// ECN; RFC 2474, RFC 3168), and returns its length.
func PutTrafficClass(c []byte, class byte, ipv6 bool) int {
	level, kind := int32(unix.IPPROTO_IP), int32(unix.IP_TOS)
	if ipv6 {
		level, kind = unix.IPPROTO_IPV6, unix.IPV6_TCLASS
	}
	data, length := Put(c, level, kind, 4)
	binary.NativeEndian.PutUint32(data, uint32(class))
	return length
}

// PutHops writes the control message that lets a packet go so many hops (TTL, hop limit), and returns its length.
func PutHops(c []byte, hops int, ipv6 bool) int {
	level, kind := int32(unix.IPPROTO_IP), int32(unix.IP_TTL)
	if ipv6 {
		level, kind = unix.IPPROTO_IPV6, unix.IPV6_HOPLIMIT
	}
	data, length := Put(c, level, kind, 4)
	binary.NativeEndian.PutUint32(data, uint32(hops))
	return length
}

// PutSegmentSize writes the control message that makes a message leave as datagrams of
// size bytes (UDP_SEGMENT, udp(7)), and returns its length.
func PutSegmentSize(c []byte, size int) int {
	data, length := Put(c, unix.SOL_UDP, unix.UDP_SEGMENT, 2)
	binary.NativeEndian.PutUint16(data, uint16(size))
	return length
}

// Put writes the header of a control message with size bytes of data, which are zero, and
// returns where these are and the length of the whole.
func Put(c []byte, level, kind int32, size int) (data []byte, length int) {
	c = c[:unix.CmsgSpace(size)]
	clear(c)
	m := (*unix.Cmsghdr)(unsafe.Pointer(&c[0]))
	m.Level, m.Type = level, kind
	m.SetLen(unix.CmsgLen(size))
	return c[unix.SizeofCmsghdr:], len(c)
}
