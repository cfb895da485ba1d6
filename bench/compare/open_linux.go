package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-lb/sluice/bench/load"
	"github.com/sluice-lb/sluice/bench/report"
)

// openShares are how much of what they can do systems are asked for, in per cent.
var openShares = []int{30, 60, 90}

// openWorkloads show what clients wait for that ask when they want to, and not when they have been answered: at a rate,
// and with the wait for a connection that is free counted. A closed loop asks less of what is slow just then, and so
// leaves out its worst times (coordinated omission).
func openWorkloads() []workload {
	var all []workload
	for _, kind := range []struct {
		name, about, unit string
		ask               load.AskConfig
	}{
		{"open", "requests on 64 connections that stay", "request",
			load.AskConfig{Kind: load.KeepAlive, Number: 64, Request: 64, Response: 200}},
		{"open-short", "connections", "connection",
			load.AskConfig{Kind: load.Short, Number: 256, Request: 64, Response: 200}},
	} {
		for _, share := range openShares {
			all = append(all, workload{name: fmt.Sprintf("%s-%d", kind.name, share), asked: true,
				about: fmt.Sprintf("TCP, %s that are due at random times, whatever has been answered, with %d %% of "+
					"the rate that the first system of the run reaches where each waits for its answer", kind.about,
					share),
				run: open(kind.name, kind.ask, share, kind.unit)})
		}
	}
	return all
}

// open measures at a share of what can be reached. All systems are asked at the same rate, at the same times.
func open(name string, c load.AskConfig, share int, unit string) work {
	return func(ctx context.Context, l *lab, r *running, d time.Duration) ([]figure, error) {
		c.Addrs, c.Warm = r.addrs(l.service(sizedService)), warm
		reached, err := l.reach(ctx, r, name, c)
		if err != nil {
			return nil, err
		}
		c.Rate, c.Poisson, c.Duration = reached*float64(share)/100, true, d
		res, u, err := l.measure(ctx, r, c)
		if err != nil {
			return nil, err
		}
		if res.Operations == 0 {
			return nil, fmt.Errorf("no %s succeeded: %d errors (%s)", unit, res.Errors, res.FirstError)
		}
		out := []figure{{report.P99, "us", res.P99}, {report.P50, "us", res.P50}, {report.P999, "us", res.P999},
			{"max", "us", res.Max}, {"due", unit + "s/s", c.Rate}, {report.Rate, unit + "s/s",
				float64(res.Operations) / res.Seconds}}
		out = append(out, costs(r, u, float64(res.Operations), micro, "us/"+unit)...)
		return append(out, figure{report.Errors, "", float64(res.Errors)}), nil
	}
}

// reachFor is how long it is measured what can be reached.
const reachFor = 2 * time.Second

// reach returns what the first system of the run that is asked reaches in a second: Sluice, unless it cannot be.
func (l *lab) reach(ctx context.Context, r *running, name string, c load.AskConfig) (float64, error) {
	if known := l.reached[name]; known > 0 {
		return known, nil
	}
	c.Duration = reachFor
	if c.Kind == load.Short {
		c.Number = 32
	}
	res, _, err := l.measure(ctx, r, c)
	if err == nil && res.Operations == 0 {
		err = errors.New("nothing was answered")
	}
	if err != nil {
		return 0, fmt.Errorf("measure what can be reached: %w", err)
	}
	if l.reached == nil {
		l.reached = make(map[string]float64)
	}
	l.reached[name] = float64(res.Operations) / res.Seconds
	return l.reached[name], nil
}
