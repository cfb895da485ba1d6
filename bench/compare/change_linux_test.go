package main

import (
	"testing"
	"time"
)

// Clients are answered in any order. What counts is the first after the last that does
// not see the change, and not the first that does.
func TestRow(t *testing.T) {
	const clients, last = agreeing + 10, 6 // the last that does not see it
	var r row
	start := time.Now()
	for i := range clients {
		r.begin(start.Add(time.Duration(i) * time.Millisecond))
	}
	for i := last + 1; i < last+agreeing; i++ {
		if at, ok := r.note(i, true); ok {
			t.Fatalf("in effect from %v on with %d of %d clients", at.Sub(start), i-last, agreeing)
		}
	}
	for _, early := range []int{0, 2, 4} { // a proxy that stalls may look like this
		if at, ok := r.note(early, true); ok {
			t.Fatalf("in effect from %v on, before it is known what those from there on see", at.Sub(start))
		}
	}
	if at, ok := r.note(last, false); ok {
		t.Fatalf("in effect from %v on with one client too few", at.Sub(start))
	}
	at, ok := r.note(last+agreeing, true)
	if want := (last + 1) * time.Millisecond; !ok || at.Sub(start) != want {
		t.Fatalf("in effect from %v on (%v), want %v", at.Sub(start), ok, want)
	}
}

// As long as clients have no answer, those after them do not count.
func TestRowWaits(t *testing.T) {
	var r row
	now := time.Now()
	for range 2 * agreeing {
		r.begin(now)
	}
	for i := 1; i < 2*agreeing; i++ {
		if _, ok := r.note(i, true); ok {
			t.Fatal("in effect although the first client has no answer yet")
		}
	}
	if _, ok := r.note(0, true); !ok {
		t.Fatal("not in effect although all see it")
	}
}

// When a change came into force is known as finely as clients began.
func TestRowGap(t *testing.T) {
	const first, later = 7 * time.Millisecond, 3 * time.Millisecond
	start := time.Now()
	r := row{start: start}
	for i := range 2 * agreeing {
		r.begin(start.Add(first + time.Duration(i)*later))
	}
	if got := r.gap(); got != first {
		t.Errorf("if the first sees it the gap is %v, want %v", got, first)
	}
	r.note(4, false)
	if got := r.gap(); got != later {
		t.Errorf("after one that does not it is %v, want %v", got, later)
	}
}
