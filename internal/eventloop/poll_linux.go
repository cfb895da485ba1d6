package eventloop

import (
	"encoding/binary"
	"fmt"
	"reflect"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/panjf2000/gnet/v2/pkg/netpoll"
	"github.com/panjf2000/gnet/v2/pkg/queue"
	"golang.org/x/sys/unix"
)

const (
	// batch is how many events are taken from the kernel at a time, at most.
	batch = 256

	// yieldAfter is how long a loop goes without Go's scheduler, in ns. That takes a
	// goroutine which it has not seen for 10 ms for one that computes, however often it has
	// slept in system calls: it then takes its processor away in each of its sleeps, and
	// wakes every 20 us to do so (sysmon and retake of Go 1.26), in 9 % of a lone client's samples.
	yieldAfter = int64(5 * time.Millisecond)
)

// one is what an eventfd(2) takes. The loop never reads it back: 2^64 wake-ups fill it.
var one = binary.NativeEndian.AppendUint64(nil, 1)

// poller is gnet's, but for how it waits. That one calls runtime.Gosched before each sleep;
// where a processor of Go's is free, the runtime then wakes another thread, which takes the
// loop over, while this one looks for work and goes to sleep: a tenth of the processor time of
// a lone client (DESIGN.md). This one sleeps at once.
type poller struct {
	*netpoll.Poller
	epoll   int // gnet's, as is wakeFD, an eventfd(2) that it watches
	wakeFD  int
	posted  queue.AsyncTaskQueue
	woken   atomic.Bool // wakeFD was written since the loop last began to run what is posted
	stopped bool        // the loop's own
	yielded int64       // when the loop was last in Go's scheduler, of Now's clock
	events  [batch]unix.EpollEvent
}

func openPoller() (*poller, error) {
	np, err := netpoll.OpenPoller()
	if err != nil {
		return nil, fmt.Errorf("open poller: %w", err)
	}
	// It keeps its descriptors to itself. Reading them needs nothing unsafe, and with a version
	// that calls them otherwise no test of this package passes.
	fields := reflect.ValueOf(np).Elem()
	return &poller{
		Poller: np,
		epoll:  int(fields.FieldByName("fd").Int()),
		wakeFD: int(fields.FieldByName("efd").Int()),
		posted: queue.NewLockFreeQueue(),
	}, nil
}

// post has fn run by the loop. It may be called from anywhere.
func (p *poller) post(fn func()) error {
	t := queue.GetTask()
	t.Param = fn
	p.posted.Enqueue(t)
	if !p.woken.CompareAndSwap(false, true) {
		return nil // whoever set it has woken the loop for this, too
	}
	if _, err := unix.Write(p.wakeFD, one); err != nil {
		return fmt.Errorf("write eventfd: %w", err)
	}
	return nil
}

// run calls dispatch with each event until a posted function has set stopped.
func (p *poller) run(dispatch func(fd int, ev Event)) error {
	for !p.stopped {
		n, err := p.wait()
		if err != nil {
			return fmt.Errorf("wait for events: %w", err)
		}
		woken := false
		for i := range n {
			if fd := int(p.events[i].Fd); fd == p.wakeFD {
				woken = true
			} else {
				dispatch(fd, Event(p.events[i].Events))
			}
		}
		if woken {
			p.runPosted()
		}
	}
	return nil
}

// wait fills events, sleeping until there is one, and returns how many there are.
func (p *poller) wait() (int, error) {
	// What cannot sleep need not tell the runtime.
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(p.epoll), uintptr(unsafe.Pointer(&p.events)), batch, 0, 0, 0)
	if errno == 0 && n > 0 {
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

// runPosted runs what has been posted so far. What that posts has its turn after the next
// events: post wakes the loop again.
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
