package load

import (
	"net/netip"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sweepEvery is how often a loop looks for timeouts, which are no events.
const sweepEvery = 10 * time.Millisecond

// handler handles what epoll(7) reports about its file descriptor.
type handler interface {
	ready(events uint32)
}

// poller is a level-triggered epoll with its handlers by descriptor.
type poller struct {
	fd       int
	handlers []handler
	events   [256]unix.EpollEvent
}

func newPoller() (*poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	return &poller{fd: fd}, err
}

func (p *poller) add(fd int, events uint32, h handler) error {
	for fd >= len(p.handlers) {
		p.handlers = append(p.handlers, make([]handler, 1024)...)
	}
	p.handlers[fd] = h
	return unix.EpollCtl(p.fd, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)})
}

// change cannot fail for a descriptor that was added.
func (p *poller) change(fd int, events uint32) {
	_ = unix.EpollCtl(p.fd, unix.EPOLL_CTL_MOD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)})
}

// close closes a descriptor; events for it that are under way are dropped.
func (p *poller) close(fd int) {
	p.handlers[fd] = nil
	_ = unix.Close(fd)
}

// wait handles what there is, after up to a sweep's time.
func (p *poller) wait() error {
	n, err := unix.EpollWait(p.fd, p.events[:], int(sweepEvery/time.Millisecond))
	if err == unix.EINTR {
		return nil
	}
	for _, ev := range p.events[:max(n, 0)] {
		if h := p.handlers[ev.Fd]; h != nil {
			h.ready(ev.Events)
		}
	}
	return err
}

// now is a monotonic clock in nanoseconds.
func now() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // fails for a clock that does not exist only
	return ts.Nano()
}

// recv, send and connect are raw: the descriptors never block, so that the
// scheduler need not know of the call.
func recv(fd int, p []byte) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))),
		uintptr(len(p)), 0, 0, 0)
	return int(n), errno
}

func send(fd int, p []byte) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))),
		uintptr(len(p)), unix.MSG_NOSIGNAL, 0, 0)
	return int(n), errno
}

// connect starts connecting a new socket of a kind (SOCK_STREAM or SOCK_DGRAM).
func connect(kind int, to netip.AddrPort) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if kind == unix.SOCK_STREAM {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	}
	if err == nil {
		err = unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())})
	}
	if err != nil && err != unix.EINPROGRESS {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// room gives a datagram socket buffers that no test fills, as root may (socket(7)).
func room(fd int) {
	for _, option := range []int{unix.SO_RCVBUFFORCE, unix.SO_SNDBUFFORCE} {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, 16<<20) // less is worse, and shows as loss
	}
}

// batch moves datagrams of one socket by recvmmsg(2) and sendmmsg(2).
type batch struct {
	headers [batchSize]unix.Mmsghdr
	vectors [batchSize]unix.Iovec
	names   [batchSize]unix.RawSockaddrInet4
	data    [batchSize][]byte
	control []byte // of the first header, if that has several datagrams
}

const (
	batchSize   = 64
	maxDatagram = 2048
	maxTrain    = 1<<16 - 1 - 20 - 8 // bytes that go as one: what an IPv4 packet holds
)

func newBatch() *batch {
	b := new(batch)
	for i := range batchSize {
		b.data[i] = make([]byte, maxDatagram)
		b.vectors[i].Base = &b.data[i][0]
		b.headers[i].Hdr.Iov = &b.vectors[i]
		b.headers[i].Hdr.SetIovlen(1)
	}
	return b
}

// receive returns how many datagrams came; named says whether to learn from whom.
func (b *batch) receive(fd int, named bool) (int, unix.Errno) {
	for i := range batchSize {
		b.vectors[i].SetLen(maxDatagram)
		b.name(i, named)
	}
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&b.headers[0])), batchSize,
		unix.MSG_DONTWAIT, 0, 0)
	return int(n), errno
}

func (b *batch) name(i int, named bool) {
	b.headers[i].Hdr.Name, b.headers[i].Hdr.Namelen = nil, 0
	if named {
		b.headers[i].Hdr.Name, b.headers[i].Hdr.Namelen = (*byte)(unsafe.Pointer(&b.names[i])), unix.SizeofSockaddrInet4
	}
}

// join has the first header take the first n datagrams, of size bytes each, which leave
// as one and part where they have to (UDP_SEGMENT, udp(7)).
func (b *batch) join(n, size int) {
	b.control = make([]byte, unix.CmsgSpace(2))
	putSegment(b.control, size)
	first := &b.headers[0].Hdr
	first.SetIovlen(n)
	first.Control = &b.control[0]
	first.SetControllen(len(b.control))
}

// send sends the first n datagrams, of the lengths in their vectors, and returns how
// many went.
func (b *batch) send(fd, n int) (int, unix.Errno) {
	sent, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(&b.headers[0])),
		uintptr(n), unix.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(sent), 0
}
