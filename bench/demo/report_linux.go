package main

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// report prints what is shown, and remembers which promises did not hold.
type report struct {
	out      io.Writer
	step     int
	promises int
	broken   []string
}

// heading starts a step and says in a line or two what it shows.
func (r *report) heading(title string, explanation ...string) {
	r.step++
	fmt.Fprintf(r.out, "\n%d. %s\n", r.step, title)
	for _, line := range explanation {
		fmt.Fprintf(r.out, "   %s\n", line)
	}
}

// line prints one line of what there is to see.
func (r *report) line(format string, args ...any) {
	fmt.Fprintf(r.out, "     "+format+"\n", args...)
}

// command shows what is run, and where.
func (r *report) command(host string, args ...string) {
	for i, a := range args {
		if strings.ContainsAny(a, " ?[]*%") {
			args[i] = "'" + a + "'"
		}
	}
	r.line("%s$ %s", host, strings.Join(args, " "))
}

// promise says whether something that Sluice promises held.
func (r *report) promise(ok bool, format string, args ...any) {
	what := fmt.Sprintf(format, args...)
	r.promises++
	mark := "ok    "
	if !ok {
		mark = "BROKEN"
		r.broken = append(r.broken, fmt.Sprintf("step %d: %s", r.step, what))
	}
	fmt.Fprintf(r.out, "   %s %s\n", mark, what)
}

// summary ends the report, and returns whether all promises held.
func (r *report) summary() bool {
	if len(r.broken) == 0 {
		fmt.Fprintf(r.out, "\nAll %d promises held.\n", r.promises)
		return true
	}
	fmt.Fprintf(r.out, "\n%d of %d promises were BROKEN:\n", len(r.broken), r.promises)
	for _, b := range r.broken {
		fmt.Fprintf(r.out, "   %s\n", b)
	}
	return false
}

// tally is who answered a client how often.
type tally struct {
	label   string // the client
	answers map[string]int
	failed  int
	slowest time.Duration // 0: not measured
	why     string        // what the client said about its last failure, if anything
}

func newTally(label string) *tally { return &tally{label: label, answers: make(map[string]int)} }

// add counts one request: the pod that answered, or "" for none, and how long that
// took, or 0.
func (t *tally) add(pod string, took time.Duration) {
	if pod == "" {
		t.failed++
	} else {
		t.answers[pod]++
	}
	t.slowest = max(t.slowest, took)
}

// total is the number of requests that were answered.
func (t *tally) total() (n int) {
	for _, k := range t.answers {
		n += k
	}
	return n
}

// table prints tallies, one line each, with a column for each pod.
func (r *report) table(pods []string, tallies ...*tally) {
	row := func(label string, cells ...any) {
		var b strings.Builder
		fmt.Fprintf(&b, "%-31s", label)
		for i, c := range cells {
			width := 8
			if i == len(cells)-1 {
				width = 13
			}
			fmt.Fprintf(&b, "%*v", width, c)
		}
		r.line("%s", b.String())
	}
	var head []any
	for _, p := range pods {
		head = append(head, p)
	}
	row("answered by", append(head, "failed", "slowest, ms")...)
	for _, t := range tallies {
		var cells []any
		for _, p := range pods {
			cells = append(cells, t.answers[p])
		}
		slowest := "-"
		if t.slowest > 0 {
			slowest = fmt.Sprint(t.slowest.Milliseconds())
		}
		row(t.label, append(cells, t.failed, slowest)...)
		if t.why != "" {
			r.line("  the last failure: %s", t.why)
		}
	}
}

// spread reports whether every one of the pods answered, no other did, and
// nothing failed.
func (t *tally) spread(pods []string) bool {
	n := 0
	for _, p := range pods {
		if t.answers[p] == 0 {
			return false
		}
		n += t.answers[p]
	}
	return n == t.total() && t.failed == 0
}
