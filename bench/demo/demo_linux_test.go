package main

import (
	"strings"
	"testing"
	"time"
)

// The demo as a whole is run by "make demo", with the real program. These are its
// parts that could be wrong without being noticed there.

func TestParseCurl(t *testing.T) {
	for _, tc := range []struct {
		line string
		pod  string
		took time.Duration
		bad  bool
	}{
		{line: "pod-0 200 0.001500\n", pod: "pod-0", took: 1500 * time.Microsecond},
		{line: " 000 2.000000\n", took: 2 * time.Second}, // no connection
		{line: "sorry 503 0.001000\n", took: time.Millisecond},
		{line: "pod-0 200 soon\n", bad: true},
		{line: "\n", bad: true},
	} {
		pod, took, err := parseCurl(tc.line)
		if pod != tc.pod || took != tc.took || (err != nil) != tc.bad {
			t.Errorf("parseCurl(%q) = %q, %v, %v", tc.line, pod, took, err)
		}
	}
}

func TestSpread(t *testing.T) {
	tally := newTally("client")
	tally.add("pod-0", 1)
	tally.add("pod-1", 3)
	both, one := []string{"pod-0", "pod-1"}, []string{"pod-0"}
	if !tally.spread(both) || tally.spread(one) || tally.spread(append(both, "pod-2")) || tally.slowest != 3 {
		t.Errorf("%+v: wrong spread", tally)
	}
	tally.add("", 2)
	if tally.spread(both) || tally.failed != 1 || tally.total() != 2 {
		t.Errorf("%+v: a failure was not counted", tally)
	}
}

// TestReport checks that a broken promise cannot be overlooked.
func TestReport(t *testing.T) {
	var out strings.Builder
	r := &report{out: &out}
	r.heading("Test")
	r.promise(true, "one")
	if !r.summary() {
		t.Error("all promises held, and the summary says no")
	}
	r.promise(false, "two %d", 2)
	if r.summary() || !strings.Contains(out.String(), "1 of 2 promises were BROKEN:\n   step 1: two 2\n") {
		t.Errorf("a promise was broken:\n%s", out.String())
	}
}

func TestComplaints(t *testing.T) {
	log := "t\tINFO\tserving\nt\tERROR\tsync\nt\tWARN\tmanifest\t{}\nt\tWARN\tiptables\npanic: x\n"
	if got := complaints(log); len(got) != 3 {
		t.Errorf("got %q", got)
	}
}
