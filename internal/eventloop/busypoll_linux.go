package eventloop

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// pollParams is struct epoll_params of linux/eventpoll.h.
type pollParams struct {
	usecs  uint32
	budget uint16 // packets at a time; 0 is the kernel's default of 8
	prefer uint8
	_      uint8
}

// BusyPoll makes each loop, when nothing is ready, poll the receive queues of its sockets' network cards for d, whole
// microseconds up to MaxBusyPoll, before it sleeps. It is for cards whose drivers have NAPI. The error is
// errors.ErrUnsupported where the kernel cannot (before Linux 6.9, ioctl_eventpoll(2)).
func (g *Group) BusyPoll(d time.Duration) error {
	for _, l := range g.loops {
		p := pollParams{usecs: uint32(min(d, MaxBusyPoll) / time.Microsecond)}
		if err := l.pollParams(unix.EPIOCSPARAMS, &p); err != nil {
			return fmt.Errorf("set busy poll of event loop %d to %v: %w", l.index, d, err)
		}
	}
	return nil
}

func (l *Loop) pollParams(request uintptr, p *pollParams) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(l.poller.epoll), request, uintptr(unsafe.Pointer(p)))
	switch errno {
	case 0:
		return nil
	case unix.ENOTTY, unix.EINVAL, unix.EOPNOTSUPP:
		return fmt.Errorf("%w by this kernel: %w", errors.ErrUnsupported, errno)
	default:
		return errno
	}
}
