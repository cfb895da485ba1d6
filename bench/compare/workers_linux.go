package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-lb/sluice/bench/load"
	"github.com/sluice-lb/sluice/bench/report"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// workerCounts are how many workers proxies have, to be compared with each other.
var workerCounts = []int{1, 2}

// spread says what a figure of theirs is.
const spread = "busiest: the share that the busiest worker has, of Sluice of the connections, of others of the " +
	"processor time"

// workerWorkloads show what further workers bring, and how evenly connections are spread over them.
func workerWorkloads() []workload {
	var all []workload
	for _, n := range workerCounts {
		all = append(all, workload{name: fmt.Sprintf("workers-%d-rr", n), workers: n, asked: true,
			about: fmt.Sprintf("TCP, requests and answers on 64 connections that stay, by proxies with %d workers; %s",
				n, spread),
			run: worked(load.AskConfig{Kind: load.KeepAlive, Number: 64, Request: 64, Response: 200}, "request")},
			workload{name: fmt.Sprintf("workers-%d-short", n), workers: n, asked: true,
				about: fmt.Sprintf("TCP, 32 clients with a connection for each request, by proxies with %d workers; "+
					"%s", n, spread),
				run: worked(load.AskConfig{Kind: load.Short, Number: 32, Request: 64, Response: 200}, "connection")})
	}
	return all
}

// worked measures a proxy of several workers.
func worked(c load.AskConfig, unit string) work {
	return func(ctx context.Context, l *lab, r *running, d time.Duration) ([]figure, error) {
		if r.process == nil {
			return nil, nil
		}
		c.Addrs, c.Warm, c.Duration = r.addrs(l.service(sizedService)), warm, d
		ctx, cancel := context.WithTimeout(ctx, c.Warm+c.Duration+testbed.Patience)
		defer cancel()
		k, err := l.ask(ctx, c)
		if err != nil {
			return nil, err
		}
		defer k.Stop(syscall.SIGKILL)
		before, err := l.timesOf(r.pid())
		if err != nil {
			return nil, err
		}
		loop, err := l.busiestLoop(ctx, r, c.Duration*3/4)
		if err != nil {
			return nil, err
		}
		res, err := k.Result()
		if err != nil {
			return nil, err
		}
		l.remarkErrors(res)
		after, err := l.timesOf(r.pid())
		if err != nil {
			return nil, err
		}
		if res.Operations == 0 {
			return nil, fmt.Errorf("no %s succeeded: %d errors (%s)", unit, res.Errors, res.FirstError)
		}
		ops, total := float64(res.Operations), after.total-before.total
		out := []figure{{report.CPU, "us/" + unit, total.Seconds() * micro / ops},
			{report.All, "us/" + unit, after.minus(before.usage).machineTime().Seconds() * micro / ops},
			{report.Rate, unit + "s/s", ops / res.Seconds}}
		if r.name != report.Ours {
			out = append(out, figure{"busiest", "share", after.busiest(before).Seconds() / total.Seconds()})
		} else if loop > 0 {
			out = append(out, figure{"busiest", "share", loop})
		}
		out = append(out, latencies(res.P50, res.P99, res.P999)...)
		return append(out, figure{report.Errors, "", float64(res.Errors)}), r.alive()
	}
}

// workerTimes is the processor time of a proxy, and of each of its threads, or of each process that it has started.
type workerTimes struct {
	usage   // of the machine
	total   time.Duration
	workers map[int]time.Duration
}

// busiest returns the time of that worker which has had most since.
func (t workerTimes) busiest(since workerTimes) (most time.Duration) {
	for id, now := range t.workers {
		most = max(most, now-since.workers[id])
	}
	return most
}

// timesOf returns those of a process.
func (l *lab) timesOf(pid int) (t workerTimes, err error) {
	t.workers = make(map[int]time.Duration)
	if t.usage, err = measureUsage(0, l.cores.proxy); err != nil {
		return t, err
	}
	if t.total, err = processTime(pid); err != nil {
		return t, err
	}
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	if err != nil {
		return t, err
	}
	for _, dir := range threads {
		id, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			return t, err
		}
		var ns int64
		text, err := os.ReadFile(filepath.Join(dir, "schedstat"))
		if _, scanErr := fmt.Sscan(string(text), &ns); err != nil || scanErr != nil {
			return t, fmt.Errorf("read a thread's processor time %q: %w", text, errors.Join(err, scanErr))
		}
		t.workers[id] = time.Duration(ns)
		children, err := os.ReadFile(filepath.Join(dir, "children"))
		if err != nil {
			return t, fmt.Errorf("read a thread's children: %w", err)
		}
		for field := range strings.FieldsSeq(string(children)) {
			child, err := strconv.Atoi(field)
			if err != nil {
				return t, fmt.Errorf("read a thread's children: %w", err)
			}
			if t.workers[child], err = processTime(child); err != nil {
				return t, err
			}
			t.total += t.workers[child]
		}
	}
	return t, nil
}

// looks is how many times within a run Sluice is asked what its loops have, which takes some processor time of it.
const looks = 8

// busiestLoop returns the share of the connections of Sluice that the loop with the most of them has, as it is at
// several times within d; 0 of another system.
func (l *lab) busiestLoop(ctx context.Context, r *running, d time.Duration) (float64, error) {
	if r.name != report.Ours {
		return 0, nil
	}
	all, loops := 0, make([]int, max(1, l.workers))
	next := time.NewTicker(d / looks)
	defer next.Stop()
	for range looks {
		text, err := l.get(ctx, strings.Replace(testbed.MetricsURL, "/metrics", "/v1/connections?limit=1000", 1))
		if err != nil {
			return 0, err
		}
		var page struct {
			Items []struct{ Loop int }
		}
		if err := json.Unmarshal([]byte(text), &page); err != nil {
			return 0, fmt.Errorf("read Sluice's connections: %w", err)
		}
		for _, c := range page.Items {
			loops[c.Loop]++
		}
		all += len(page.Items)
		select {
		case <-next.C:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	return float64(slices.Max(loops)) / float64(max(all, 1)), nil
}
