package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// wrkResult is what one run of wrk has seen; latencies are in microseconds.
type wrkResult struct {
	requests, errors, seconds float64
	p50, p99, p999            float64
}

// parseWrk reads the line that wrkScript prints.
func parseWrk(out string) (r wrkResult, err error) {
	_, line, ok := strings.Cut(out, "RESULT ")
	if !ok {
		return r, fmt.Errorf("read wrk: no result in %q", out)
	}
	line, _, _ = strings.Cut(line, "\n")
	values := make(map[string]float64)
	for _, field := range strings.Fields(line) {
		name, text, _ := strings.Cut(field, "=")
		if values[name], err = strconv.ParseFloat(text, 64); err != nil {
			return r, fmt.Errorf("read wrk: %q: %w", field, err)
		}
	}
	r = wrkResult{
		requests: values["requests"], errors: values["errors"], seconds: values["duration_us"] / 1e6,
		p50: values["p50"], p99: values["p99"], p999: values["p999"],
	}
	if len(values) != 7 || r.seconds <= 0 {
		return r, fmt.Errorf("read wrk: %q is not whole", line)
	}
	return r, nil
}

// iperfResult is what one run of iperf3 has seen, both directions together.
type iperfResult struct{ bytes, seconds, retransmits float64 }

// parseIperf reads iperf3 --json. What was received counts: what was sent may not
// have arrived.
func parseIperf(out []byte) (r iperfResult, err error) {
	type sum struct{ Bytes, Seconds, Retransmits float64 }
	var doc struct {
		Error string
		End   struct {
			Sent            *sum `json:"sum_sent"`
			Received        *sum `json:"sum_received"`
			ReverseSent     sum  `json:"sum_sent_bidir_reverse"`
			ReverseReceived sum  `json:"sum_received_bidir_reverse"`
		}
	}
	if err := json.Unmarshal(out, &doc); err != nil {
		return r, fmt.Errorf("read iperf3: %w", err)
	}
	if doc.Error != "" {
		return r, fmt.Errorf("run iperf3: %s", doc.Error)
	}
	e := doc.End
	if e.Sent == nil || e.Received == nil || e.Received.Seconds <= 0 || e.Received.Bytes <= 0 {
		return r, errors.New("read iperf3: nothing was received")
	}
	return iperfResult{
		bytes:       e.Received.Bytes + e.ReverseReceived.Bytes,
		seconds:     e.Received.Seconds,
		retransmits: e.Sent.Retransmits + e.ReverseSent.Retransmits,
	}, nil
}

// ticks is the time of one core, or of all, in the kernel's ticks (proc_stat(5)).
type ticks struct{ busy, idle, stolen uint64 }

func (t ticks) minus(u ticks) ticks {
	return ticks{t.busy - u.busy, t.idle - u.idle, t.stolen - u.stolen}
}

// share returns part of all of t.
func (t ticks) share(part uint64) float64 {
	if all := t.busy + t.idle + t.stolen; all > 0 {
		return float64(part) / float64(all)
	}
	return 0
}

// parseStat reads the line of one core, "cpu1", or of all, "cpu", from /proc/stat.
func parseStat(text, core string) (ticks, error) {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 9 || fields[0] != core {
			continue
		}
		var v [8]uint64
		for i := range v {
			var err error
			if v[i], err = strconv.ParseUint(fields[1+i], 10, 64); err != nil {
				return ticks{}, fmt.Errorf("read /proc/stat: %q: %w", line, err)
			}
		}
		// user, nice, system, idle, iowait, irq, softirq, steal
		return ticks{busy: v[0] + v[1] + v[2] + v[5] + v[6], idle: v[3] + v[4], stolen: v[7]}, nil
	}
	return ticks{}, fmt.Errorf("read /proc/stat: no line %s", core)
}

// field returns the first value of "name: value" or "name = value" lines, as in
// /proc/cpuinfo and /proc/meminfo.
func field(text, name string) string {
	s := bufio.NewScanner(strings.NewReader(text))
	for s.Scan() {
		if key, value, ok := strings.Cut(s.Text(), ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// firstLine returns the first line of a program's output that says something.
func firstLine(out string) string {
	for line := range strings.Lines(out) {
		if line = strings.TrimSpace(line); line != "" {
			return line
		}
	}
	return "unknown"
}

// parseReceived returns how many bytes an interface has received, from the text of
// /proc/net/dev: headers included, once for each of the large packets that hosts on the
// same machine pass to each other.
func parseReceived(text, dev string) (uint64, error) {
	for line := range strings.Lines(text) {
		name, counters, ok := strings.Cut(line, ":")
		if fields := strings.Fields(counters); ok && strings.TrimSpace(name) == dev && len(fields) > 0 {
			return strconv.ParseUint(fields[0], 10, 64)
		}
	}
	return 0, fmt.Errorf("read /proc/net/dev: no %s", dev)
}
