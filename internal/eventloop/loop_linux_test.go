package eventloop

import (
	"errors"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/testbed"
)

func newGroup(t *testing.T, n int) *Group {
	t.Helper()
	g, err := NewGroup(n)
	check(t, err)
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Errorf("close group: %v", err)
		}
	})
	return g
}

// do runs fn on a loop.
func do(t *testing.T, l *Loop, fn func() error) {
	t.Helper()
	var err error
	check(t, l.Do(func() { err = fn() }))
	check(t, err)
}

type handler func(Event)

func (f handler) HandleEvent(ev Event) { f(ev) }

// pair returns two connected non-blocking sockets.
func pair(t *testing.T) (a, b int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	check(t, err)
	t.Cleanup(func() { _ = unix.Close(fds[1]) })
	return fds[0], fds[1]
}

func wait[T any](t *testing.T, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(10 * time.Second):
		t.Fatalf("no %s within 10 s", what)
		panic("unreachable")
	}
}

func TestNewGroupNeedsALoop(t *testing.T) {
	if _, err := NewGroup(0); err == nil {
		t.Fatal("NewGroup(0) succeeded")
	}
}

func TestEventsAndRearm(t *testing.T) {
	loop := newGroup(t, 1).Loops()[0]
	fd, far := pair(t)
	events := make(chan Event, 16)
	do(t, loop, func() error { return loop.Add(fd, handler(func(ev Event) { events <- ev })) })
	if ev := wait(t, events, "first event"); ev&Writable == 0 || ev&Readable != 0 {
		t.Errorf("first event = %#x, want writable only", ev)
	}
	if _, err := unix.Write(far, []byte("x")); err != nil {
		t.Fatal(err)
	}
	if ev := wait(t, events, "event for data"); ev&Readable == 0 {
		t.Errorf("event = %#x, want readable", ev)
	}
	// Edge-triggered: unread data is reported again only when asked for.
	do(t, loop, func() error { return loop.Rearm(fd) })
	if ev := wait(t, events, "event after Rearm"); ev&Readable == 0 {
		t.Errorf("event after Rearm = %#x, want readable", ev)
	}
	check(t, unix.Shutdown(far, unix.SHUT_WR))
	if ev := wait(t, events, "event for the end"); ev&Hangup == 0 {
		t.Errorf("event = %#x, want a hang-up", ev)
	}
	do(t, loop, func() error { return loop.Close(fd) })
	if len(events) != 0 {
		t.Errorf("%d events too many", len(events))
	}
}

func TestTimers(t *testing.T) {
	loop := newGroup(t, 1).Loops()[0]
	var early, late, stopped Timer
	fired := make(chan *Timer, 4)
	var start int64
	owner := expirer(func(tm *Timer) {
		if tm == &stopped {
			t.Error("a stopped timer fired")
		}
		if age := Now() - start; tm == &early && age < int64(20*time.Millisecond) {
			t.Errorf("timer of 20 ms fired after %d ns", age)
		}
		fired <- tm
	})
	check(t, loop.Do(func() {
		start = Now()
		loop.After(&late, owner, 60*time.Millisecond)
		loop.After(&early, owner, 20*time.Millisecond) // moves the alarm forward
		loop.After(&stopped, owner, 30*time.Millisecond)
		loop.StopTimer(&stopped)
		loop.StopTimer(&stopped)
	}))
	if wait(t, fired, "timer") != &early || wait(t, fired, "timer") != &late {
		t.Error("timers fired in the wrong order")
	}
}

func TestPostFromManyGoroutines(t *testing.T) {
	g := newGroup(t, 2)
	const posters, each = 8, 500
	var ran atomic.Int64
	done := make(chan struct{})
	for p := range posters {
		go func() {
			for i := range each {
				if err := g.Loops()[(p+i)%2].Post(func() {
					if ran.Add(1) == posters*each {
						close(done)
					}
				}); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	wait(t, done, "end of all posted work")
}

// TestPostedMakeRoom: events are handled between functions that post themselves again and again.
func TestPostedMakeRoom(t *testing.T) {
	loop := newGroup(t, 1).Loops()[0]
	fd, far := pair(t)
	read := make(chan struct{})
	over := false
	do(t, loop, func() error { return loop.AddRead(fd, handler(func(Event) { over = true; close(read) })) })
	runs, started := 0, make(chan struct{})
	var again func()
	again = func() {
		if runs++; runs == 2 {
			close(started)
		}
		if !over {
			_ = loop.Post(again) // refused when the test has given up
		}
	}
	check(t, loop.Post(again))
	wait(t, started, "second run of what is posted")
	if _, err := unix.Write(far, []byte("x")); err != nil {
		t.Fatal(err)
	}
	wait(t, read, "event beside what is posted")
	do(t, loop, func() error { return loop.Close(fd) })
}

func TestCloseJoinsAndRefuses(t *testing.T) {
	before := openDescriptors(t)
	goroutines := runtime.NumGoroutine()
	g, err := NewGroup(3)
	check(t, err)
	loop := g.Loops()[0]
	ran := false
	check(t, loop.Post(func() { ran = true }))
	for range 2 {
		check(t, g.Close())
	}
	if !ran {
		t.Error("work posted before Close did not run")
	}
	if err := loop.Post(func() {}); !errors.Is(err, ErrClosed) {
		t.Errorf("Post after Close = %v, want ErrClosed", err)
	}
	if err := loop.Do(func() {}); !errors.Is(err, ErrClosed) {
		t.Errorf("Do after Close = %v, want ErrClosed", err)
	}
	if after := openDescriptors(t); after != before {
		t.Errorf("%d descriptors after Close, %d before NewGroup", after, before)
	}
	// A goroutine counts until it has returned from closing its done channel.
	for deadline := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > goroutines; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines after Close, %d before NewGroup", runtime.NumGoroutine(), goroutines)
		}
	}
}

func openDescriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	check(t, err)
	return len(entries)
}

func TestBuffers(t *testing.T) {
	var p Buffers
	for _, size := range []int{1, 4 << 10, 4<<10 + 1, 16<<10 + 1, ScratchSize} {
		want := make([]byte, size)
		for i := range want {
			want[i] = byte(i)
		}
		b := p.Copy(want)
		if b.Len() != size || string(b.Bytes()) != string(want) {
			t.Fatalf("a buffer of %d bytes holds %d others", size, b.Len())
		}
		b.Take(size / 2)
		if string(b.Bytes()) != string(want[size/2:]) {
			t.Fatalf("a buffer of %d bytes holds the wrong rest", size)
		}
		p.Return(b)
	}
	if p.Lent() != 0 {
		t.Errorf("%d buffers are lent, want 0", p.Lent())
	}
	small := []byte("x")
	if n := testing.AllocsPerRun(100, func() { p.Return(p.Copy(small)) }); n != 0 {
		t.Errorf("a pooled buffer costs %v allocations, want 0", n)
	}
}

func TestBudget(t *testing.T) {
	b := Budget{Limit: 3}
	if !b.Take(2) || b.Take(2) || !b.Take(1) || b.Used() != 3 || b.Exhausted() != 1 {
		t.Errorf("used %d, exhausted %d times; want 3 and 1", b.Used(), b.Exhausted())
	}
	b.Give(3)
	if !b.Take(3) {
		t.Error("what was given back cannot be taken again")
	}
	var unlimited Budget
	if !unlimited.Take(1 << 40) {
		t.Error("the zero Budget refused")
	}
}

var check = testbed.Check
