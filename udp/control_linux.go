package udp

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// controlSize holds what a socket of ours is given at most: a sock_extended_err with the
// address of who reported it (ip(7), IP_RECVERR), or in6_pktinfo and the length of a
// train's datagrams.
const controlSize = 64

// controlMessage is one ancillary object of a datagram (cmsg(3)).
type controlMessage struct {
	level, kind int32
	data        []byte
}

// nextControl splits the first control message off b. False: there is none, or it
// is cut off.
func nextControl(b []byte) (m controlMessage, rest []byte, ok bool) {
	if len(b) < unix.SizeofCmsghdr {
		return m, nil, false
	}
	word := unix.SizeofCmsghdr - 8 // the length is a size_t, the other two are ints
	size := uint64(binary.NativeEndian.Uint32(b))
	if word == 8 {
		size = binary.NativeEndian.Uint64(b)
	}
	if size < unix.SizeofCmsghdr || size > uint64(len(b)) {
		return m, nil, false
	}
	m.level = int32(binary.NativeEndian.Uint32(b[word:]))
	m.kind = int32(binary.NativeEndian.Uint32(b[word+4:]))
	m.data = b[unix.SizeofCmsghdr:size]
	return m, b[min(len(b), unix.CmsgSpace(len(m.data))):], true
}

// localAddr returns the address of ours that a datagram was sent to.
//
// Of in_pktinfo it takes ipi_spec_dst, which replies can be sent from; it differs
// from the destination in the header for broadcasts only (ip(7)).
func localAddr(control []byte) (netip.Addr, bool) {
	for {
		m, rest, ok := nextControl(control)
		switch {
		case !ok:
			return netip.Addr{}, false
		case m.level == unix.IPPROTO_IP && m.kind == unix.IP_PKTINFO && len(m.data) >= unix.SizeofInet4Pktinfo:
			return netip.AddrFrom4([4]byte(m.data[4:8])), true
		case m.level == unix.IPPROTO_IPV6 && m.kind == unix.IPV6_PKTINFO && len(m.data) >= unix.SizeofInet6Pktinfo:
			return netip.AddrFrom16([16]byte(m.data)), true
		}
		control = rest
	}
}

// segmentSize returns how long the datagrams of a train are, but for the last; 0 if there
// is only one (UDP_GRO, udp(7)).
func segmentSize(control []byte) int {
	for {
		m, rest, ok := nextControl(control)
		switch {
		case !ok:
			return 0
		case m.level == unix.SOL_UDP && m.kind == unix.UDP_GRO && len(m.data) >= 4:
			return int(int32(binary.NativeEndian.Uint32(m.data)))
		}
		control = rest
	}
}

// putLocalAddr writes the control message that has a datagram leave from addr, and
// returns its length. The interface stays open: the routes decide.
func putLocalAddr(control []byte, addr netip.Addr) int {
	level, kind, size := unix.IPPROTO_IP, unix.IP_PKTINFO, unix.SizeofInet4Pktinfo
	if addr.Is6() {
		level, kind, size = unix.IPPROTO_IPV6, unix.IPV6_PKTINFO, unix.SizeofInet6Pktinfo
	}
	data, length := putControl(control, level, kind, size)
	if addr.Is6() {
		ip := addr.As16()
		copy(data, ip[:])
	} else {
		ip := addr.As4()
		copy(data[4:], ip[:])
	}
	return length
}

// putSegmentSize writes the control message that has what is sent leave as datagrams of
// size bytes (UDP_SEGMENT, udp(7)), and returns its length.
func putSegmentSize(control []byte, size int) int {
	data, length := putControl(control, unix.SOL_UDP, unix.UDP_SEGMENT, 2)
	binary.NativeEndian.PutUint16(data, uint16(size))
	return length
}

// putControl writes the header of a control message with size bytes of data, and returns
// where these go and the length of the whole.
func putControl(control []byte, level, kind, size int) (data []byte, length int) {
	control = control[:unix.CmsgSpace(size)]
	clear(control)
	word := unix.SizeofCmsghdr - 8
	if word == 8 {
		binary.NativeEndian.PutUint64(control, uint64(unix.CmsgLen(size)))
	} else {
		binary.NativeEndian.PutUint32(control, uint32(unix.CmsgLen(size)))
	}
	binary.NativeEndian.PutUint32(control[word:], uint32(level))
	binary.NativeEndian.PutUint32(control[word+4:], uint32(kind))
	return control[unix.SizeofCmsghdr:], len(control)
}

// queuedError returns the error that a message of the error queue is about, 0 if
// it is about none (struct sock_extended_err, ip(7)).
func queuedError(control []byte) unix.Errno {
	for {
		m, rest, ok := nextControl(control)
		switch {
		case !ok:
			return 0
		case m.level == unix.IPPROTO_IP && m.kind == unix.IP_RECVERR && len(m.data) >= 4,
			m.level == unix.IPPROTO_IPV6 && m.kind == unix.IPV6_RECVERR && len(m.data) >= 4:
			return unix.Errno(binary.NativeEndian.Uint32(m.data))
		}
		control = rest
	}
}
