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
	late := latecomer(func(deadline int64) bool {
		order = append(order, "late")
		if deadline <= Now() {
			t.Error("a latecomer has no time")
		}
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
