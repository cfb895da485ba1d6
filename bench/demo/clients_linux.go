package main

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sluice-lb/sluice/internal/testbed"
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
	curl *testbed.Process

	mu     sync.Mutex
	rest   []byte // of a line that is not whole yet
	phase  *tally
	recent []string // answers of this phase, the last of them; "" for a failure
	bad    error
}

// window is how many answers in a row show that a change is in effect.
const window = 60

func startLoad(ctx context.Context, h *testbed.Host, vip string) (*load, error) {
	l := &load{phase: newTally(h.Name)}
	cmd := h.Command(ctx, "curl", curlArgs(vip, 10_000_000)...)
	cmd.Args = slices.Insert(cmd.Args, 1, "-N") // a line at a time
	cmd.Stdout = l
	var err error
	l.curl, err = cmd.Launch()
	return l, err
}

// startLoads starts a load on each host. stop is never nil, and ends the started loads.
func startLoads(ctx context.Context, vip string, hosts ...*testbed.Host) (all []*load, stop func(), err error) {
	stop = func() {
		for _, l := range all {
			l.stop()
		}
	}
	for _, h := range hosts {
		l, err := startLoad(ctx, h, vip)
		if err != nil {
			return all, stop, err
		}
		all = append(all, l)
	}
	return all, stop, nil
}

// Write reads what curl writes.
func (l *load) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rest = append(l.rest, p...)
	for {
		line, rest, whole := bytes.Cut(l.rest, []byte("\n"))
		if !whole {
			return len(p), nil
		}
		l.rest = rest
		pod, took, err := parseCurl(string(line))
		if err != nil {
			l.bad = err
			continue
		}
		l.phase.add(pod, took)
		l.recent = append(l.recent[max(0, len(l.recent)-window+1):], pod)
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

// await waits until the last answers come from exactly these pods, for 10 s.
func (l *load) await(ctx context.Context, pods []string) error {
	return testbed.Poll(ctx, 10*time.Second, fmt.Sprintf("answers from %v, and no others, on %s", pods, l.phase.label),
		func() (bool, error) {
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
func (l *load) stop() { l.curl.Stop(syscall.SIGKILL) }

// pause waits for some time, or until ctx is done.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
