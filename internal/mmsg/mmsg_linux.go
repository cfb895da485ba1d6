package mmsg

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/socket"
)

// Slots is how many messages one call moves at most. More gains nothing: the
// cost of the call itself is spread thin enough at 8 to 32.
const Slots = 32

// ControlSize is how many bytes of control messages a message has room for: a source address,
// a traffic class, a hop limit and a sock_extended_err with the address of its sender (ip(7), IP_RECVERR), or
// a source address, a TTL and the segment size of a GRO batch, in either family.
const ControlSize = 160

// ControlBuffer is room for the control messages of one message.
type ControlBuffer = [ControlSize]byte

// Reader is where Read puts a batch. It is used by one goroutine at a time.
type Reader struct {
	n       int // messages of the last call
	headers [Slots]unix.Mmsghdr
	vectors [Slots]unix.Iovec
	names   [Slots]socket.Name
	control [Slots]ControlBuffer
	data    []byte
	size    int // of a slot, bytes
}

// NewReader makes a Reader with room for messages of up to size bytes. Pages that no message
// has filled take no memory.
func NewReader(size int) *Reader {
	r := &Reader{n: Slots, size: size, data: make([]byte, Slots*size)}
	for i := range Slots {
		r.vectors[i].Base = &r.data[i*size]
		r.vectors[i].SetLen(size)
		h := &r.headers[i].Hdr
		*h = unix.Msghdr{Name: r.names[i].Pointer(), Iov: &r.vectors[i], Control: &r.control[i][0]}
		h.SetIovlen(1)
	}
	return r
}

// Read takes what waits at fd, at most Slots messages, and returns how many there were. Fewer
// mean that fd was empty by then. flags are those of recvmsg(2); MSG_ERRQUEUE reads the error
// queue. What it has read stays until the next Read.
func (r *Reader) Read(fd, flags int) (int, error) {
	for i := range r.n { // the kernel has overwritten these
		h := &r.headers[i].Hdr
		h.Namelen = r.names[i].Size()
		h.SetControllen(ControlSize)
	}
	var err error
	r.n, err = call(unix.SYS_RECVMMSG, fd, r.headers[:], flags)
	return r.n, err
}

// Len returns how many messages the last Read has returned.
func (r *Reader) Len() int { return r.n }

// Payload returns the i-th message.
func (r *Reader) Payload(i int) []byte {
	from := i * r.size
	return r.data[from : from+int(r.headers[i].Len)]
}

// Name returns the sender of the i-th message; of the error queue, its destination.
func (r *Reader) Name(i int) *socket.Name { return &r.names[i] }

// Control returns the control messages of the i-th message.
func (r *Reader) Control(i int) Control {
	return r.control[i][:min(ControlSize, int(r.headers[i].Hdr.Controllen))]
}

// Truncated reports whether the i-th message or its control messages were cut off.
func (r *Reader) Truncated(i int) bool {
	return r.headers[i].Hdr.Flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0
}

// Send sends messages and returns how many went. Fewer than all may go without an error: the
// next call reports it (sendmmsg(2), BUGS).
func Send(fd int, headers []unix.Mmsghdr) (int, error) {
	if len(headers) == 1 {
		return sendOne(fd, &headers[0].Hdr)
	}
	return call(unix.SYS_SENDMMSG, fd, headers, 0)
}

// sendOne sends one message. It prefers sendto(2), for which the kernel copies no header.
func sendOne(fd int, h *unix.Msghdr) (int, error) {
	for {
		var errno unix.Errno
		if h.Iovlen == 1 && h.Controllen == 0 {
			_, _, errno = unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(h.Iov.Base)),
				uintptr(h.Iov.Len), unix.MSG_DONTWAIT, uintptr(unsafe.Pointer(h.Name)), uintptr(h.Namelen))
		} else {
			_, _, errno = unix.RawSyscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(h)), unix.MSG_DONTWAIT)
		}
		switch errno {
		case 0:
			return 1, nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}

// Address fills in where a message goes and its control messages, of which the first length
// bytes of control are sent. A nil name is for a connected socket.
func Address(h *unix.Msghdr, name *socket.Name, control *ControlBuffer, length int) {
	h.Name, h.Namelen, h.Control = nil, 0, nil
	if name != nil {
		h.Name, h.Namelen = name.Pointer(), name.Size()
	}
	if length > 0 {
		h.Control = &control[0]
	}
	h.SetControllen(length)
}

// call is recvmmsg(2) or sendmmsg(2).
func call(trap uintptr, fd int, headers []unix.Mmsghdr, flags int) (int, error) {
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
