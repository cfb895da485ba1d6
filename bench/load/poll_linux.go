package load

import (
	"net/netip"
	"runtime"
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

// wait handles what there is, after a time at most.
func (p *poller) wait(most time.Duration) error {
	n, err := unix.EpollWait(p.fd, p.events[:], int(most/time.Millisecond))
	return p.handle(n, err)
}

// waitUntil handles what there is, until a moment or after a time at most. It is exact to what the thread's timer slack
// is (exactTimers).
func (p *poller) waitUntil(moment int64, most time.Duration) error {
	limit := unix.NsecToTimespec(min(max(0, moment-now()), int64(most)))
	n, _, errno := unix.Syscall6(unix.SYS_EPOLL_PWAIT2, uintptr(p.fd), uintptr(unsafe.Pointer(&p.events[0])),
		uintptr(len(p.events)), uintptr(unsafe.Pointer(&limit)), 0, 0)
	if errno != 0 {
		return p.handle(0, errno)
	}
	return p.handle(int(n), nil)
}

// exactTimers has the calling thread, which the goroutine keeps, wake up when it is due: usually the kernel takes 50 us
// more to let what is due at about the same time wake it up once (PR_SET_TIMERSLACK, prctl(2)).
func exactTimers() error {
	runtime.LockOSThread()
	return unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
}

// handle handles what a wait has found.
func (p *poller) handle(n int, err error) error {
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
