package udp

import (
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/socket"
)

const (
	// slots is how many datagrams one system call moves. More gains nothing: the
	// cost of the call itself is spread thin enough at 8 to 32.
	slots = 32

	datagramSize = 64 << 10 // holds any datagram of UDP: 16 bits of length
	quoteSize    = 2 << 10  // holds what ICMP quotes of one: at most 1,280 bytes

	// maxSegmented is how many bytes go as one: what an IPv4 packet holds.
	maxSegmented = 1<<16 - 1 - 20 - 8
)

// incoming is where recvmmsg(2) puts a batch: the datagrams, who sent them, and
// the control messages.
type incoming struct {
	n       int // datagrams of the last call
	header  [slots]unix.Mmsghdr
	vector  [slots]unix.Iovec
	name    [slots]socket.Name
	control [slots][controlSize]byte
	data    []byte
	size    int // of a slot, bytes
}

// init makes room for datagrams of up to size bytes.
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

// receive takes what waits at fd, at most a batch, and returns how many datagrams
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

// payload returns the i-th datagram, until the next receive.
func (in *incoming) payload(i int) []byte {
	from := i * in.size
	return in.data[from : from+int(in.header[i].Len)]
}

// controls returns the control messages of the i-th datagram.
func (in *incoming) controls(i int) []byte {
	return in.control[i][:min(controlSize, int(in.header[i].Hdr.Controllen))]
}

// key returns the flow that the i-th datagram belongs to. False: it cannot be told
// or answered.
func (in *incoming) key(i int) (flowKey, bool) {
	client := in.name[i].AddrPort()
	local, ok := localAddr(in.controls(i))
	if !ok || client.Port() == 0 || in.header[i].Hdr.Flags&unix.MSG_TRUNC != 0 {
		return flowKey{}, false
	}
	k := flowKey{client: client, local: local}
	if client.Addr().Is6() {
		k.scope = (*unix.RawSockaddrInet6)(unsafe.Pointer(in.name[i].Pointer())).Scope_id
	}
	return k, true
}

// outgoing is a batch for sendmmsg(2): datagrams for one destination. Those in a row
// that are equally long pass through the kernel as one, up to where they have to be
// apart: the device, or a receiver that does not want them so (UDP_SEGMENT, udp(7)).
type outgoing struct {
	n       int // datagrams in it
	vector  [slots]unix.Iovec
	plain   bool  // datagrams go one by one: the kernel, or the way, would not have it otherwise
	to      *byte // nil: the peer of a connected socket
	toSize  uint32
	from    [controlSize]byte // control message for our address
	fromLen int               // bytes of it

	// What send makes of it.

	header  [slots]unix.Mmsghdr
	runs    [slots]int // datagrams of each header
	control [slots][controlSize]byte
}

// reset empties the batch, for a connected socket.
func (out *outgoing) reset(plain bool) {
	out.n, out.plain, out.to, out.toSize, out.fromLen = 0, plain, nil, 0, 0
}

// resetTo empties the batch, for a destination and from one of our addresses.
func (out *outgoing) resetTo(to *socket.Name, from netip.Addr, plain bool) {
	out.n, out.plain, out.to, out.toSize = 0, plain, to.Pointer(), to.Size()
	out.fromLen = putLocalAddr(out.from[:], from)
}

// add appends a datagram, which must stay as it is until it is sent.
func (out *outgoing) add(p []byte) {
	out.vector[out.n].Base = unsafe.SliceData(p)
	out.vector[out.n].SetLen(len(p))
	out.n++
}

// send sends the datagrams from the first-th on and returns how many went. After
// some have gone the kernel keeps the reason for stopping to itself (sendmmsg(2),
// BUGS), and the error is nil.
func (out *outgoing) send(fd, first int) (int, error) {
	headers := out.pack(first)
	sent, err := mmsg(unix.SYS_SENDMMSG, fd, headers, 0)
	if err != nil && out.runs[0] > 1 && unsegmentable(err) {
		out.plain = true
		headers = out.pack(first)
		sent, err = mmsg(unix.SYS_SENDMMSG, fd, headers, 0)
	}
	datagrams := 0
	for _, run := range out.runs[:sent] {
		datagrams += run
	}
	return datagrams, err
}

// unsegmentable reports whether err may be about datagrams going as one: the kernel
// does not know that (before 4.18), they are longer than the way allows, or the
// device cannot give them checksums.
func unsegmentable(err error) bool {
	return err == unix.EINVAL || err == unix.EMSGSIZE || err == unix.EIO || err == unix.EOPNOTSUPP
}

// pack makes headers for the datagrams from the first-th on.
func (out *outgoing) pack(first int) []unix.Mmsghdr {
	n := 0
	for i := first; i < out.n; i += out.runs[n-1] {
		run := 1
		if !out.plain {
			run = out.run(i)
		}
		control, length := &out.from, out.fromLen
		if run > 1 {
			control = &out.control[n]
			copy(control[:], out.from[:length])
			length += putSegmentSize(control[length:], int(out.vector[i].Len))
		}
		h := &out.header[n].Hdr
		h.Name, h.Namelen = out.to, out.toSize
		h.Iov = &out.vector[i]
		h.SetIovlen(run)
		h.Control = nil
		if length > 0 {
			h.Control = &control[0]
		}
		h.SetControllen(length)
		out.runs[n] = run
		n++
	}
	return out.header[:n]
}

// run returns how many datagrams from the i-th on can go as one: all are equally long,
// but for the last, which may be shorter.
func (out *outgoing) run(i int) int {
	size := out.vector[i].Len
	total, n := size, 1
	for size > 0 && i+n < out.n {
		next := out.vector[i+n].Len
		if next == 0 || next > size || total+next > maxSegmented {
			break
		}
		total += next
		n++
		if next < size {
			break
		}
	}
	return n
}

// size returns the length of the i-th datagram in bytes.
func (out *outgoing) size(i int) int { return int(out.vector[i].Len) }

// bytes returns the length of the datagrams from the first-th on, n of them.
func (out *outgoing) bytes(first, n int) uint64 {
	sum := uint64(0)
	for i := first; i < first+n; i++ {
		sum += uint64(out.vector[i].Len)
	}
	return sum
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
