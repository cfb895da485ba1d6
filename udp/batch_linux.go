package udp

import (
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/socket"
)

const (
	// slots is how many messages one system call moves. More gains nothing: the
	// cost of the call itself is spread thin enough at 8 to 32.
	slots = 32

	datagramSize = 64 << 10 // holds any datagram of UDP, and any train: 16 bits of length
	quoteSize    = 2 << 10  // holds what ICMP quotes of one: at most 1,280 bytes

	// maxSegmented is how many bytes go as one: what an IPv4 packet holds. maxSegments is
	// how many datagrams: newer kernels take 128, but all take 64 (UDP_MAX_SEGMENTS).
	maxSegmented = 1<<16 - 1 - 20 - 8
	maxSegments  = 64
)

// incoming is where recvmmsg(2) puts a batch: the messages, each a datagram or a train,
// who sent them, and the control messages.
type incoming struct {
	n       int // messages of the last call
	header  [slots]unix.Mmsghdr
	vector  [slots]unix.Iovec
	name    [slots]socket.Name
	control [slots][controlSize]byte
	data    []byte
	size    int // of a slot, bytes
}

// init makes room for messages of up to size bytes.
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

// receive takes what waits at fd, at most a batch, and returns how many messages
// there were. Fewer than a batch means that fd was empty by then.
func (in *incoming) receive(fd, flags int) (int, error) {
	// The kernel has overwritten these in the headers that it used.
	for i := range in.n {
		h := &in.header[i].Hdr
		h.Namelen = in.name[i].Size()
		h.SetControllen(controlSize)
	}
	var err error
	in.n, err = mmsg(unix.SYS_RECVMMSG, fd, in.header[:], flags)
	return in.n, err
}

// payload returns the i-th message, until the next receive.
func (in *incoming) payload(i int) []byte {
	from := i * in.size
	return in.data[from : from+int(in.header[i].Len)]
}

// segment returns how long the datagrams of the i-th message are, but for the last; 0 if
// it is one datagram.
func (in *incoming) segment(i int) int { return segmentSize(in.controls(i)) }

// controls returns the control messages of the i-th message.
func (in *incoming) controls(i int) []byte {
	return in.control[i][:min(controlSize, int(in.header[i].Hdr.Controllen))]
}

// key returns the flow that the i-th message belongs to. False: it cannot be told
// or answered.
func (in *incoming) key(i int) (flowKey, bool) {
	client := in.name[i].AddrPort()
	local, ok := localAddr(in.controls(i))
	if !ok || client.Port() == 0 || in.header[i].Hdr.Flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		return flowKey{}, false
	}
	k := flowKey{client: client, local: local}
	if client.Addr().Is6() {
		k.scope = (*unix.RawSockaddrInet6)(unsafe.Pointer(in.name[i].Pointer())).Scope_id
	}
	return k, true
}

// outgoing is a batch for sendmmsg(2): messages for one destination, each a datagram or
// a train. Datagrams in a row that are equally long pass through the kernel as one, up to
// where they have to be apart: the device, or a receiver that does not want them so
// (UDP_SEGMENT, udp(7)).
type outgoing struct {
	n       int // messages in it
	message [slots]message
	next    place // of the first datagram that has not gone
	left    int   // datagrams that have not gone
	last    int   // length of the datagram that went last, bytes
	gso     bool  // several datagrams may go as one, if the kernel knows UDP_SEGMENT
	plain   bool  // datagrams go one by one: the kernel, or the way, would not have it otherwise
	to      *byte // nil: the peer of a connected socket
	toSize  uint32
	from    [controlSize]byte // control message for our address
	fromLen int               // bytes of it

	// What send makes of it.

	header  [slots]unix.Mmsghdr
	runs    [slots]run // of each header
	vector  [slots]unix.Iovec
	control [slots][controlSize]byte
}

// message is what one receive has brought: a datagram, or several in a row of which all
// but the last are as long as segment says.
type message struct {
	data    []byte
	segment int
}

// place is where a datagram begins: in which message, and at which byte of it.
type place struct{ message, offset int }

// run is the datagrams that one header sends.
type run struct {
	datagrams, bytes int
	size             int   // of each but the last, which may be shorter
	vectors          int   // that it takes
	end              place // where the next run begins
}

// last returns the length of the run's last datagram.
func (r *run) last() int { return r.bytes - (r.datagrams-1)*r.size }

// reset empties the batch, for a connected socket.
func (out *outgoing) reset(plain bool) {
	out.n, out.next, out.left, out.plain = 0, place{}, 0, plain || !out.gso || !segmentation()
	out.to, out.toSize, out.fromLen = nil, 0, 0
}

// resetTo empties the batch, for a destination and from one of our addresses.
func (out *outgoing) resetTo(to *socket.Name, from netip.Addr, plain bool) {
	out.reset(plain)
	out.to, out.toSize = to.Pointer(), to.Size()
	out.fromLen = putLocalAddr(out.from[:], from)
}

// add appends a message, which must stay as it is until it is sent. segment is 0 for a
// datagram.
func (out *outgoing) add(p []byte, segment int) {
	if segment <= 0 || segment > len(p) {
		segment = len(p)
	}
	out.message[out.n] = message{p, segment}
	out.n++
	out.left += datagrams(len(p), segment)
}

// datagrams returns how many make up a message of size bytes.
func datagrams(size, segment int) int {
	if segment <= 0 || segment >= size {
		return 1
	}
	return (size + segment - 1) / segment
}

// send sends what has not gone and returns how many datagrams and bytes went. If some are
// left they wait for something that err says, or, after sendmmsg has kept that to itself
// (sendmmsg(2), BUGS), the next call.
func (out *outgoing) send(fd int) (n, bytes int, err error) {
	for out.left > 0 {
		headers := out.pack()
		sent, err := mmsg(unix.SYS_SENDMMSG, fd, headers, 0)
		if err == unix.EMSGSIZE {
			// It may be about an earlier datagram, reported by ICMP, and is cleared now (sk_err).
			sent, err = mmsg(unix.SYS_SENDMMSG, fd, headers, 0)
		}
		if err != nil && out.runs[0].datagrams > 1 && unsegmentable(err) {
			out.plain = true
			headers = out.pack()
			sent, err = mmsg(unix.SYS_SENDMMSG, fd, headers, 0)
		}
		for i := range sent {
			r := &out.runs[i]
			n += r.datagrams
			bytes += r.bytes
			out.left -= r.datagrams
			out.next, out.last = r.end, r.last()
		}
		if err != nil || sent < len(headers) {
			return n, bytes, err
		}
	}
	return n, bytes, nil
}

// skip gives up the first datagram that has not gone.
func (out *outgoing) skip() {
	m := &out.message[out.next.message]
	out.next.offset += m.segment
	if out.next.offset >= len(m.data) {
		out.next = place{out.next.message + 1, 0}
	}
	out.left--
}

// unsegmentable reports whether err may be about datagrams going as one: they are longer
// than the way allows, the device cannot give them checksums, or something on the way
// has to see each of them (IPsec).
func unsegmentable(err error) bool {
	return err == unix.EINVAL || err == unix.EMSGSIZE || err == unix.EIO || err == unix.EOPNOTSUPP
}

// pack makes headers for what has not gone, or for as much of it as there are headers.
func (out *outgoing) pack() []unix.Mmsghdr {
	n, vectors := 0, 0
	for at := out.next; at.message < out.n && n < slots && vectors < slots; n++ {
		r := &out.runs[n]
		out.run(r, at, vectors)
		control, length := &out.from, out.fromLen
		if r.datagrams > 1 {
			control = &out.control[n]
			copy(control[:], out.from[:length])
			length += putSegmentSize(control[length:], r.size)
		}
		h := &out.header[n].Hdr
		h.Name, h.Namelen = out.to, out.toSize
		h.Iov = &out.vector[vectors]
		h.SetIovlen(r.vectors)
		h.Control = nil
		if length > 0 {
			h.Control = &control[0]
		}
		h.SetControllen(length)
		at = r.end
		vectors += r.vectors
	}
	return out.header[:n]
}

// run puts the datagrams that can go as one, from at on, into the vectors from the
// first-th on, and what they are into r. All are equally long, but for the last, which may
// be shorter. A train is cut only where it is too long alone.
func (out *outgoing) run(r *run, at place, first int) {
	m := &out.message[at.message]
	size := min(m.segment, len(m.data)-at.offset)
	most := maxSegments
	if out.plain || size == 0 {
		most = 1
	}
	*r = run{size: size, end: at}
	for last := false; !last && r.datagrams < most && r.end.message < out.n && first+r.vectors < slots; r.vectors++ {
		m := &out.message[r.end.message]
		rest, n := m.data[r.end.offset:], 1
		if len(rest) > m.segment {
			n = datagrams(len(rest), m.segment)
		}
		if own := min(m.segment, len(rest)); own != size && (own > size || own == 0 || n > 1) {
			return
		}
		if n > most-r.datagrams || len(rest) > maxSegmented-r.bytes {
			if r.datagrams > 0 {
				return
			}
			n = min(n, most, max(1, maxSegmented/size)) // size is not 0: that is never too long
			rest = rest[:min(n*size, len(rest))]
		}
		v := &out.vector[first+r.vectors]
		v.Base = unsafe.SliceData(rest)
		v.SetLen(len(rest))
		r.datagrams += n
		r.bytes += len(rest)
		if r.end.offset += len(rest); r.end.offset == len(m.data) {
			r.end = place{r.end.message + 1, 0}
		}
		last = len(rest) < n*size
	}
}

// mmsg is recvmmsg(2) and sendmmsg(2), never waiting. The error is a bare errno.
func mmsg(trap uintptr, fd int, headers []unix.Mmsghdr, flags int) (int, error) {
	for {
		n, _, errno := unix.RawSyscall6(trap, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(headers))),
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

// disconnect takes from a connected socket its peer, its local address and port,
// and the errors that wait; received datagrams stay. A connect then makes it as
// good as new, for half the cost and without a second descriptor.
func disconnect(fd int) {
	unspec := unix.RawSockaddrInet4{Family: unix.AF_UNSPEC} // connect(2): dissolves the association
	_, _, _ = unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&unspec)), unsafe.Sizeof(unspec))
	// Nothing refers to the socket any more, so that the queue only gets shorter.
	var b byte
	for {
		_, _, errno := unix.Syscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&b)), 1,
			unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT, 0, 0)
		if errno != 0 {
			break
		}
	}
	_, _ = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR) // reading clears it
}
