package eventloop

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/panjf2000/gnet/v2/pkg/queue"
	"golang.org/x/sys/unix"
)

const (
	// batch is how many events are taken from the kernel at a time, at most.
	batch = 256

	// yieldAfter is how long a loop runs without calling Go's scheduler, in ns. A goroutine
	// that the scheduler has not seen for 10 ms counts as computing, however often it slept in
	// system calls: its processor is taken away in each sleep, by a monitor that wakes every
	// 20 us for that (sysmon and retake of Go 1.26; 9 % of a lone client's samples).
	yieldAfter = int64(5 * time.Millisecond)

	// What descriptors are watched for, edge-triggered: EPOLLHUP and EPOLLERR always are.
	watchRead = uint32(Readable) | unix.EPOLLRDHUP | unix.EPOLLET
	watchBoth = watchRead | uint32(Writable)
)

// one is what an eventfd(2) takes. The loop never reads it back: 2^64 wake-ups fill it.
var one = binary.NativeEndian.AppendUint64(nil, 1)

// poller is an epoll instance, and the functions posted to it. Only post may be called by other goroutines.
type poller struct {
	epoll   int
	wakeFD  int                  // an eventfd(2) in it
	posted  queue.AsyncTaskQueue // lock-free: many goroutines post, the loop takes
	woken   atomic.Bool          // wakeFD was written since the loop last began to run what is posted
	stopped bool                 // set by a posted function
	got     int                  // events of the present turn
	began   int64                // when the present turn did; 0: the clock was not asked
	yielded int64                // when the loop last called Go's scheduler, of Now's clock
	events  [batch]unix.EpollEvent
}

func openPoller() (*poller, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create epoll instance: %w", err)
	}
	wakeFD, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("create eventfd: %w", err), unix.Close(epoll))
	}
	p := &poller{epoll: epoll, wakeFD: wakeFD, posted: queue.NewLockFreeQueue()}
	if err := p.control(unix.EPOLL_CTL_ADD, wakeFD, watchRead); err != nil {
		return nil, errors.Join(fmt.Errorf("watch eventfd: %w", err), p.close())
	}
	return p, nil
}

// control adds fd to the epoll instance or changes what it reports (epoll_ctl(2)).
func (p *poller) control(op, fd int, events uint32) error {
	return unix.EpollCtl(p.epoll, op, fd, &unix.EpollEvent{Fd: int32(fd), Events: events})
}

func (p *poller) remove(fd int) error { return unix.EpollCtl(p.epoll, unix.EPOLL_CTL_DEL, fd, nil) }

func (p *poller) close() error { return errors.Join(unix.Close(p.wakeFD), unix.Close(p.epoll)) }

// post makes the loop run fn.
func (p *poller) post(fn func()) error {
	t := queue.GetTask()
	t.Param = fn
	p.posted.Enqueue(t)
	if !p.woken.CompareAndSwap(false, true) {
		return nil // the loop was woken already, for this function too
	}
	if _, err := unix.Write(p.wakeFD, one); err != nil {
		return fmt.Errorf("write eventfd: %w", err)
	}
	return nil
}

// run calls dispatch with each event, and whether there are many, until a posted function has set stopped. A turn ends
// with a call of finish with when the turn began, 0 if it has had one event only; it reports whether there is something
// to do without an event.
func (p *poller) run(dispatch func(fd int, ev Event, many bool), finish func(began int64) (more bool)) error {
	more := false
	for !p.stopped {
		n, err := p.wait(more)
		if err != nil {
			return fmt.Errorf("wait for events: %w", err)
		}
		p.got = n
		p.began = 0 // the clock costs a lone client's turn too much
		if n > 1 || more {
			p.began = Now()
		}
		woken := false
		for i := range n {
			if fd := int(p.events[i].Fd); fd == p.wakeFD {
				woken = true
			} else {
				dispatch(fd, Event(p.events[i].Events), more || n > fewEvents)
			}
		}
		if woken {
			p.runPosted()
		}
		more = finish(p.began)
	}
	return nil
}

// wait fills events, sleeping until there is one unless more is to be done, and returns how many there are. It goes to
// sleep without calling Go's scheduler: where a processor of Go's is free, that wakes another
// thread, which takes the loop over, at a tenth of a lone client's processor time.
func (p *poller) wait(more bool) (int, error) {
	// A call that cannot sleep need not tell the runtime.
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT,
		uintptr(p.epoll), uintptr(unsafe.Pointer(&p.events)), batch, 0, 0, 0)
	if errno == 0 && (n > 0 || more) {
		return int(n), nil
	}
	if now := Now(); now-p.yielded > yieldAfter {
		p.yielded = now
		runtime.Gosched()
	}
	for {
		if n, err := unix.EpollWait(p.epoll, p.events[:], -1); err != unix.EINTR {
			return n, err
		}
	}
}

// runPosted runs what has been posted so far. What that posts runs after the next events: post wakes the loop again.
func (p *poller) runPosted() {
	p.woken.Store(false)
	for range p.posted.Length() {
		t := p.posted.Dequeue()
		if t == nil {
			return
		}
		fn := t.Param.(func())
		queue.PutTask(t)
		fn()
	}
}
