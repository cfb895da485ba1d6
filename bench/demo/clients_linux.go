package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sluice-lb/sluice/bench/testbed"
)

// curlArgs are those of a curl that asks n times, each time by a connection of its
// own (keep-alive would stay with one pod), and prints a line such as
// "pod-0 200 0.001234" for each: the answer, the status, and the time in seconds.
// A request may take 5 s.
func curlArgs(vip string, n int) []string {
	return []string{"-s", "-m", "5", "-H", "Connection: close", "-w", " %{http_code} %{time_total}\\n",
		fmt.Sprintf("http://%s/?[1-%d]", vip, n)}
}

// showCurl prints the part of it that a reader wants.
func showCurl(r *report, host, vip string, n int) {
	r.command(host, "curl", "-H", "Connection: close", fmt.Sprintf("http://%s/?[1-%d]", vip, n))
}

// parseCurl reads one line of curl's; pod is "" unless the status is 200.
func parseCurl(line string) (pod string, took time.Duration, err error) {
	fields := strings.Fields(line)
	if len(fields) < 2 {
		return "", 0, fmt.Errorf("understand curl's line %q", line)
	}
	seconds, err := strconv.ParseFloat(fields[len(fields)-1], 64)
	if err != nil {
		return "", 0, fmt.Errorf("understand curl's line %q: %w", line, err)
	}
	if len(fields) == 3 && fields[1] == "200" {
		pod = fields[0]
	}
	return pod, time.Duration(seconds * float64(time.Second)), nil
}

// curl asks n times from a host and counts who answered. That requests fail is in
// the tally, not an error.
func curl(ctx context.Context, h *testbed.Host, vip string, n int) (*tally, error) {
	out, runErr := h.Command(ctx, "curl", curlArgs(vip, n)...).Output()
	t := newTally(h.Name)
	for line := range strings.Lines(string(out)) {
		pod, took, err := parseCurl(line)
		if err != nil {
			return nil, err
		}
		if pod == "" {
			t.why = fmt.Sprintf("%q", strings.TrimSpace(line))
		}
		t.add(pod, took)
	}
	if got := t.total() + t.failed; got != n {
		return nil, fmt.Errorf("run curl on %s: %d lines for %d requests: %v", h.Name, got, n, runErr)
	}
	return t, nil
}

// digArgs ask a DNS server for the TXT record that names it. One try, so that a
// loss shows.
func digArgs(vip, transport string) []string {
	return []string{"+short", "+tries=1", "+time=3", transport, "@" + vip, "who.demo.example", "TXT"}
}

// dig asks n times from a host and counts who answered.
func dig(ctx context.Context, h *testbed.Host, vip, transport string, n int) *tally {
	t := newTally(h.Name)
	for range n {
		out, err := h.Command(ctx, "dig", digArgs(vip, transport)...).Output()
		pod := strings.Trim(strings.TrimSpace(string(out)), `"`)
		if err != nil || strings.ContainsAny(pod, "; \n") { // dig explains failures in lines that start with ;;
			t.why = fmt.Sprintf("%q, %v", pod, err)
			pod = ""
		}
		t.add(pod, 0) // mostly the time to start dig
	}
	return t
}

// load is a curl that asks again and again until it is stopped.
type load struct {
	cmd  *testbed.Cmd
	done chan struct{} // closed when its output has ended

	mu     sync.Mutex
	phase  *tally
	recent []string // answers of this phase, the last of them; "" for a failure
	bad    error
}

// window is how many answers in a row show that a change has come into force.
const window = 60

func startLoad(ctx context.Context, h *testbed.Host, vip string) (*load, error) {
	l := &load{cmd: h.Command(ctx, "curl", curlArgs(vip, 10_000_000)...), done: make(chan struct{}), phase: newTally(h.Name)}
	l.cmd.Args = slices.Insert(l.cmd.Args, 1, "-N") // a line at a time
	out, err := l.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start curl: %w", err)
	}
	if err := l.cmd.Start(); err != nil {
		return nil, err
	}
	go l.read(out)
	return l, nil
}

func (l *load) read(out io.Reader) {
	defer close(l.done)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		pod, took, err := parseCurl(lines.Text())
		l.mu.Lock()
		if err != nil {
			l.bad = err
		} else {
			l.phase.add(pod, took)
			l.recent = append(l.recent[max(0, len(l.recent)-window+1):], pod)
		}
		l.mu.Unlock()
	}
}

// begin starts a new phase and returns the tally of the last one.
func (l *load) begin() *tally {
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.phase
	l.phase, l.recent = newTally(old.label), nil
	return old
}

// settle waits until the last answers come from exactly these pods, for 10 s.
func (l *load) settle(ctx context.Context, pods []string) error {
	return poll(ctx, 10*time.Second, fmt.Sprintf("answers from %v, and no others, on %s", pods, l.phase.label), func() (bool, error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if len(l.recent) < window {
			return false, l.bad
		}
		seen := slices.Compact(slices.Sorted(slices.Values(l.recent)))
		return slices.Equal(seen, pods), l.bad
	})
}

// stop ends the curl, in the middle of a request or not.
func (l *load) stop() {
	l.cmd.Process.Kill()
	<-l.done
	l.cmd.Wait() // killed, as it should be
}

// pause waits for some time, or until ctx is done.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// poll calls ok until it returns true or fails, for no longer than limit.
func poll(ctx context.Context, limit time.Duration, what string, ok func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		done, err := ok()
		if err != nil {
			return fmt.Errorf("wait for %s: %w", what, err)
		}
		if done {
			return nil
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return fmt.Errorf("wait for %s: %w", what, err)
		}
	}
}
