package eventloop

import (
	"slices"
	"testing"
)

// idle is a handler without events.
type idle struct{}

func (idle) HandleEvent(Event) {}

// TestWalk: each handler is passed once, in the order of descriptors, however far they are apart, in parts.
func TestWalk(t *testing.T) {
	l, h := new(Loop), idle{}
	all := []int{0, 3, pageSize - 1, pageSize, walkMost - 1, walkMost, walkMost + 1, 5 * walkMost}
	for _, fd := range all {
		l.set(fd, h)
	}
	l.set(7, h)
	l.set(7, nil)
	var got []int
	calls := 0
	for from := 0; from >= 0; calls++ {
		next := l.Walk(from, func(fd int, _ Handler) bool {
			got = append(got, fd)
			return fd != pageSize
		})
		if next >= 0 && (next <= from || next-from > walkMost+pageSize) {
			t.Fatalf("from %d it goes on with %d", from, next)
		}
		from = next
	}
	if !slices.Equal(got, all) || calls < 5 {
		t.Errorf("%d calls pass %v, want %v", calls, got, all)
	}
}
