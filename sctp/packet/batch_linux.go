package packet

import (
	"encoding/binary"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/socket"
)

const (
	// slots is how many packets one system call moves.
	slots = 32

	packetSize  = 64 << 10 // holds any IP packet, reassembled
	controlSize = 128      // a source address, a traffic class and an error, in either family
	quoteSize   = 2 << 10  // holds what ICMP quotes of a packet: at most 1,280 bytes
)

// datagram is a received packet, until the next receive.
type datagram struct {
	peer, local netip.Addr
	scope       uint32 // of a link-local peer: its interface
	tos         byte   // DSCP and ECN (RFC 2474, RFC 3168)
	sctp        []byte // without the IP header
}

// incoming is where recvmmsg(2) puts a batch.
type incoming struct {
	n       int // packets of the last call
	header  [slots]unix.Mmsghdr
	vector  [slots]unix.Iovec
	name    [slots]socket.Name
	control [slots][controlSize]byte
	data    []byte
	size    int // of a slot, bytes
}

// init makes room for packets of up to size bytes.
func (in *incoming) init(size int) {
	in.size = size
	in.data = make([]byte, slots*size)
	for i := range slots {
		in.vector[i].Base = &in.data[i*size]
		in.vector[i].SetLen(size)
		in.header[i].Hdr = unix.Msghdr{Name: in.name[i].Pointer(), Iov: &in.vector[i], Control: &in.control[i][0]}
		in.header[i].Hdr.SetIovlen(1)
	}
	in.n = slots
}

// receive takes what waits at fd, at most a batch, and returns how many packets
// there were. Fewer than a batch means that fd was empty by then.
func (in *incoming) receive(fd, flags int) (int, error) {
	for i := range in.n { // the kernel has overwritten these
		h := &in.header[i].Hdr
		h.Namelen = in.name[i].Size()
		h.SetControllen(controlSize)
	}
	var err error
	in.n, err = mmsg(unix.SYS_RECVMMSG, fd, in.header[:], flags)
	return in.n, err
}

func (in *incoming) payload(i int) []byte {
	return in.data[i*in.size:][:in.header[i].Len]
}

// controls returns the control messages of the i-th packet.
func (in *incoming) controls(i int) []byte {
	return in.control[i][:min(controlSize, int(in.header[i].Hdr.Controllen))]
}

// datagram returns the i-th packet. A raw socket of IPv4 gives the IP header too
// (raw(7)), one of IPv6 does not (RFC 3542 section 3). False: it is not whole.
func (in *incoming) datagram(i int, ipv6 bool) (d datagram, ok bool) {
	b, h := in.payload(i), &in.header[i].Hdr
	if h.Flags&unix.MSG_TRUNC != 0 {
		return d, false
	}
	if !ipv6 {
		if len(b) < 20 || len(b) < int(b[0]&15)*4 {
			return d, false
		}
		d.peer = netip.AddrFrom4([4]byte(b[12:16]))
		d.local = netip.AddrFrom4([4]byte(b[16:20]))
		d.tos, d.sctp = b[1], b[int(b[0]&15)*4:]
		return d, true
	}
	d.peer, d.sctp = in.name[i].AddrPort().Addr(), b
	if d.peer.IsLinkLocalUnicast() {
		d.scope = (*unix.RawSockaddrInet6)(unsafe.Pointer(in.name[i].Pointer())).Scope_id
	}
	for m, value, rest := firstMessage(in.controls(i)); m != nil; m, value, rest = firstMessage(rest) {
		switch {
		case m.Level != unix.IPPROTO_IPV6:
		case m.Type == unix.IPV6_PKTINFO && len(value) >= 16:
			d.local, ok = netip.AddrFrom16([16]byte(value[:16])), true
		case m.Type == unix.IPV6_TCLASS && len(value) >= 4:
			d.tos = byte(binary.NativeEndian.Uint32(value))
		}
	}
	return d, ok
}

// firstMessage splits the first control message from the rest (cmsg(3)); nil: there
// is none.
func firstMessage(c []byte) (m *unix.Cmsghdr, value, rest []byte) {
	if len(c) < unix.SizeofCmsghdr {
		return nil, nil, nil
	}
	m = (*unix.Cmsghdr)(unsafe.Pointer(&c[0]))
	if m.Len < unix.SizeofCmsghdr || uint64(m.Len) > uint64(len(c)) {
		return nil, nil, nil
	}
	value = c[unix.CmsgLen(0):m.Len]
	return m, value, c[min(len(c), unix.CmsgSpace(len(value))):]
}

// unreachable reports whether control messages of the error queue are about a
// packet that did not arrive because of where it went (ip(7), IP_RECVERR). One that
// was too long for the path is the kernel's own affair: the next one is fragmented.
func unreachable(controls []byte) bool {
	for m, value, rest := firstMessage(controls); m != nil; m, value, rest = firstMessage(rest) {
		v4 := m.Level == unix.IPPROTO_IP && m.Type == unix.IP_RECVERR
		v6 := m.Level == unix.IPPROTO_IPV6 && m.Type == unix.IPV6_RECVERR
		if (v4 || v6) && len(value) >= int(unsafe.Sizeof(unix.SockExtendedErr{})) {
			e := (*unix.SockExtendedErr)(unsafe.Pointer(&value[0]))
			icmp := e.Origin == unix.SO_EE_ORIGIN_ICMP || e.Origin == unix.SO_EE_ORIGIN_ICMP6
			return icmp && unix.Errno(e.Errno) != unix.EMSGSIZE
		}
	}
	return false
}

// outgoing is a batch for sendmmsg(2).
type outgoing struct {
	n       int // packets in it
	header  [slots]unix.Mmsghdr
	vector  [slots]unix.Iovec
	name    [slots]socket.Name
	control [slots][controlSize]byte
}

func (out *outgoing) full() bool { return out.n == slots }

// add appends a packet, which must stay as it is until it is sent, from one of
// our addresses to a leg's peer.
func (out *outgoing) add(p []byte, to *leg, tos byte) {
	i := out.n
	out.n++
	out.vector[i].Base = unsafe.SliceData(p)
	out.vector[i].SetLen(len(p))
	out.name[i] = to.name
	h := &out.header[i].Hdr
	h.Iov = &out.vector[i]
	h.SetIovlen(1)
	h.Name, h.Namelen = out.name[i].Pointer(), to.name.Size()
	h.Control = &out.control[i][0]
	h.SetControllen(putControl(out.control[i][:], to.local(), to.key.scope, tos))
}

// putControl writes the source address and the traffic class of a packet, and
// returns how many bytes that takes (ip(7), ipv6(7)).
func putControl(c []byte, from netip.Addr, scope uint32, tos byte) int {
	if from.Is4() {
		info := (*unix.Inet4Pktinfo)(putMessage(c, unix.IPPROTO_IP, unix.IP_PKTINFO, unix.SizeofInet4Pktinfo))
		*info = unix.Inet4Pktinfo{Spec_dst: from.As4()}
		at := unix.CmsgSpace(unix.SizeofInet4Pktinfo)
		*(*int32)(putMessage(c[at:], unix.IPPROTO_IP, unix.IP_TOS, 4)) = int32(tos)
		return at + unix.CmsgSpace(4)
	}
	info := (*unix.Inet6Pktinfo)(putMessage(c, unix.IPPROTO_IPV6, unix.IPV6_PKTINFO, unix.SizeofInet6Pktinfo))
	*info = unix.Inet6Pktinfo{Addr: from.As16(), Ifindex: scope}
	at := unix.CmsgSpace(unix.SizeofInet6Pktinfo)
	*(*int32)(putMessage(c[at:], unix.IPPROTO_IPV6, unix.IPV6_TCLASS, 4)) = int32(tos)
	return at + unix.CmsgSpace(4)
}

// putMessage writes the header of a control message and returns where its size
// bytes of value go.
func putMessage(c []byte, level, kind int32, size int) unsafe.Pointer {
	m := (*unix.Cmsghdr)(unsafe.Pointer(&c[0]))
	m.Level, m.Type = level, kind
	m.SetLen(unix.CmsgLen(size))
	return unsafe.Pointer(&c[unix.CmsgLen(0)])
}

// flush sends the batch and empties it. It returns how many packets the kernel
// refused: because a queue was full, and for other reasons.
func (out *outgoing) flush(fd int) (busy, failed uint64) {
	again := false
	for first := 0; first < out.n; {
		n, err := mmsg(unix.SYS_SENDMMSG, fd, out.header[first:out.n], 0)
		switch {
		case n > 0: // if some are left, the next call says why
			first, again = first+n, false
			continue
		case !again: // it may be an earlier packet's error, which ICMP told of
			again = true
			continue
		case err == unix.EAGAIN || err == unix.ENOBUFS || err == unix.ENOMEM:
			busy++
		default:
			failed++
		}
		first, again = first+1, false
	}
	out.n = 0
	return busy, failed
}

// mmsg is recvmmsg(2) and sendmmsg(2), never waiting. The error is a bare errno.
func mmsg(trap uintptr, fd int, headers []unix.Mmsghdr, flags int) (int, error) {
	for {
		n, _, errno := unix.Syscall6(trap, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(headers))),
			uintptr(len(headers)), uintptr(flags|unix.MSG_DONTWAIT), 0, 0)
		switch errno {
		case 0:
			return int(n), nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}
