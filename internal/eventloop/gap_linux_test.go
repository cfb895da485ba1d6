package eventloop

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestGap: where the loop has stood still, as in a process that was stopped, all that waits in sockets is handled
// before a timer fires, also more than one turn takes.
func TestGap(t *testing.T) {
	g := newGroup(t, 1)
	l := g.Loops()[0]
	const sockets = 2*batch + 10
	handled := 0
	var ends []int
	for range sockets {
		a, b := pair(t)
		ends = append(ends, b)
		do(t, l, func() error {
			return l.AddRead(a, handler(func(ev Event) {
				if ev&Readable != 0 {
					handled++
				}
			}))
		})
	}
	fired := make(chan int, 1)
	var timer Timer
	do(t, l, func() error {
		l.After(&timer, expirer(func(*Timer) { fired <- handled }), 10*time.Millisecond)
		return nil
	})
	resume, err := g.Halt()
	check(t, err)
	time.Sleep(2 * time.Duration(gapLeast)) // the loop is to stand still for as long
	for _, fd := range ends {
		if _, err := unix.Write(fd, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	resume()
	select {
	case n := <-fired:
		if n < sockets {
			t.Errorf("the timer fires after %d of %d events", n, sockets)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the timer does not fire")
	}
	check(t, g.Close())
}
