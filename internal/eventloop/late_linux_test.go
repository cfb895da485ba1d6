package eventloop

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

type latecomer func(deadline int64) bool

func (l latecomer) ServeLate(deadline int64) bool { return l(deadline) }

// Latecomers are served after the events of their turn, with time left, in every turn until they are done.
func TestLate(t *testing.T) {
	g := newGroup(t, 1)
	l := g.Loops()[0]
	var order []string
	done := make(chan struct{})
	turns := 0
	before := int64(0) // when what came before in the loop was handled: how long this takes is up to the machine
	late := latecomer(func(deadline int64) bool {
		order = append(order, "late")
		if deadline <= before {
			t.Error("a latecomer has no time")
		}
		before = Now()
		if turns++; turns < 3 {
			return true
		}
		close(done)
		return false
	})
	var ends []int
	for range 2 { // in one turn, since both come while the loop is halted
		a, b := pair(t)
		ends = append(ends, b)
		do(t, l, func() error {
			return l.AddRead(a, handler(func(Event) {
				if order = append(order, "event"); len(order) == 1 {
					l.Late(late)
				}
				before = Now()
			}))
		})
	}
	resume, err := g.Halt()
	check(t, err)
	for _, fd := range ends {
		if _, err := unix.Write(fd, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	resume()
	wait(t, done, "the last turn of the latecomer")
	check(t, g.Close())
	if want := []string{"event", "event", "late", "late", "late"}; !slices.Equal(order, want) {
		t.Errorf("served in the order %q, want %q", order, want)
	}
}

// Where there are many events, those of descriptors that were added by AddDeferred come after the others, all of them
// in the end, and those that were promoted since do not.
func TestDeferred(t *testing.T) {
	g := newGroup(t, 1)
	l := g.Loops()[0]
	const each = 3 * fewEvents
	var order []string
	done := make(chan struct{})
	var ends []int
	for _, kind := range []string{"deferred", "promoted", "usual"} {
		for range each {
			a, b := pair(t)
			ends = append(ends, b)
			on := false
			h := handler(func(ev Event) {
				if on && ev&Readable != 0 {
					if order = append(order, kind); len(order) == 3*each {
						close(done)
					}
				}
				on = true // the first event says that there is room
			})
			do(t, l, func() error {
				if kind == "usual" {
					return l.Add(a, h)
				}
				err := l.AddDeferred(a, h)
				if kind == "promoted" {
					l.Promote(a)
				}
				return err
			})
		}
	}
	for range 2 { // what was reported as the descriptors were added has been handled by the end of the second turn
		do(t, l, func() error { return nil })
	}
	resume, err := g.Halt()
	check(t, err)
	for _, fd := range ends {
		if _, err := unix.Write(fd, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	resume()
	wait(t, done, "the last event")
	check(t, g.Close())
	if first := slices.Index(order, "deferred"); first < 2*each {
		t.Errorf("a deferred event is number %d of %d", first, len(order))
	}
}
