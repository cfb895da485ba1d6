package checks

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/lb"
)

// due lets n checks of a Service wait that are due now.
func due(q *turns, namespace, name string, n int, now time.Time) {
	for range n {
		q.wait(&state{service: q.service(lb.Name{Namespace: namespace, Name: name}), due: now})
	}
}

// TestTurnsLeaveRoom: checks that never end take shares of the slots only, and those of another namespace or Service
// begin in the same turn in which they are due.
func TestTurnsLeaveRoom(t *testing.T) {
	now := time.Now()
	for _, namespaces := range []int{1, 2, 3, 60} {
		q, begun := newTurns(maxSlots), make(map[*namespaceTurn]int)
		for n := range namespaces {
			for s := range 60 {
				due(&q, fmt.Sprint("silent", n), fmt.Sprint(s), 20, now)
			}
		}
		start := func(s *state) { begun[s.service.of]++ }
		q.begin(now, start)
		each := maxSlots / (namespaces + 1)
		for name, n := range q.namespaces {
			if got := int(n.flying); got < each-1 || got > each+1 {
				t.Errorf("%d namespaces: %s has %d checks in flight, want %d", namespaces, name, got, each)
			}
		}
		due(&q, "other", "web", 1, now)
		if q.begin(now, start); begun[q.namespaces["other"]] != 1 {
			t.Errorf("%d namespaces: no check of another one began", namespaces)
		}
	}
}

// TestTurnsOfServices: a Service with many checks that are due does not delay another one of its namespace.
func TestTurnsOfServices(t *testing.T) {
	now := time.Now()
	q := newTurns(maxSlots)
	var begun []*state
	start := func(s *state) { begun = append(begun, s) }
	due(&q, "a", "many", 1000, now)
	q.begin(now, start)
	due(&q, "a", "web", 1, now)
	q.release(begun[0])
	q.release(begun[1])
	before := len(begun)
	q.begin(now, start)
	if len(begun) != before+2 || begun[before].service == begun[before+1].service {
		t.Errorf("%d checks began for two slots, of one Service", len(begun)-before)
	}
}

// TestTurnsInOrder: within a Service checks begin in the order in which they are due, none of them early, and
// namespaces take turns for slots that become free.
func TestTurnsInOrder(t *testing.T) {
	now := time.Now()
	q := newTurns(4)
	var begun []*state
	start := func(s *state) { begun = append(begun, s) }
	for _, at := range []int{3, 1, 2, 9} {
		q.wait(&state{service: q.service(lb.Name{Namespace: "a"}), due: now.Add(time.Duration(at))})
	}
	for range 9 {
		q.begin(now.Add(3), start)
		if len(begun) > 0 {
			q.release(begun[len(begun)-1])
		}
	}
	if len(begun) != 3 || !begun[0].due.Before(begun[1].due) || !begun[1].due.Before(begun[2].due) {
		t.Errorf("%d checks began, not in order, or not those that are due", len(begun))
	}
	q, begun = newTurns(2), nil
	for n := range 8 { // more than there are slots
		due(&q, fmt.Sprint(n), "web", 8, now)
	}
	had := make(map[*namespaceTurn]int)
	for range 32 {
		q.begin(now, start)
		had[begun[0].service.of]++
		q.release(begun[0])
		begun = begun[1:]
	}
	for _, n := range had {
		if len(had) != 8 || n < 3 || n > 5 {
			t.Fatalf("8 namespaces had %v turns of 32", had)
		}
	}
}

// TestTurnsReset: a new table keeps count of what is in flight.
func TestTurnsReset(t *testing.T) {
	now := time.Now()
	q := newTurns(maxSlots)
	var begun []*state
	due(&q, "a", "web", 1000, now)
	q.begin(now, func(s *state) { begun = append(begun, s) })
	q.reset()
	due(&q, "a", "web", 1000, now)
	before := len(begun)
	if q.begin(now, func(s *state) { begun = append(begun, s) }); len(begun) != before {
		t.Errorf("%d more checks began beyond the share", len(begun)-before)
	}
	for _, s := range begun {
		q.release(s)
	}
	if q.reset(); len(q.services) != 0 || len(q.namespaces) != 0 || q.free != maxSlots {
		t.Errorf("%d Services, %d namespaces, %d free slots", len(q.services), len(q.namespaces), q.free)
	}
}
