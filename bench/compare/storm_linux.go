package main

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/sluice-lb/sluice/bench/load"
	"github.com/sluice-lb/sluice/bench/report"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// stormRates are how many connections a second a storm has: what one core of load and servers makes, and more than a
// proxy serves.
var stormRates = []float64{2000, 10000}

// stormWorkloads show what new connections at one Service do to another one.
func stormWorkloads() []workload {
	var all []workload
	for _, rate := range stormRates {
		all = append(all, workload{name: fmt.Sprintf("storm-%.0f", rate), about: fmt.Sprintf("TCP, another Service's "+
			"1,000 requests and 50 new connections a second while one Service has %.0f new connections a second, all "+
			"of them due at fixed times", rate), asked: true, run: storm(sizedService, rate)})
	}
	const rate = 10000
	return append(all, workload{name: "limited", about: fmt.Sprintf("TCP, the same with %d new connections a second "+
		"of one client address, of which a limit lets %d through (HAProxy: a stick table)", rate, clientRate),
		asked: true, run: storm(limitedService, rate)})
}

// storm measures requests on open connections and new connections of a Service beside a storm at another, and what each
// connection of the storm costs.
func storm(at string, rate float64) work {
	return func(ctx context.Context, l *lab, r *running, d time.Duration) (figures []figure, err error) {
		ctx, cancel := context.WithTimeout(ctx, d+2*testbed.Patience)
		defer cancel()
		const margin = 500 * time.Millisecond // the storm is there before, and goes on behind
		clients := []load.AskConfig{
			{Kind: load.Short, Rate: rate, Number: 3000, Addrs: r.addrs(l.service(at)),
				Duration: d + 2*margin},
			{Kind: load.KeepAlive, Rate: 1000, Number: 16, Addrs: r.addrs(l.service(calmService))},
			{Kind: load.Short, Rate: 50, Number: 200, Addrs: r.addrs(l.service(calmService))},
		}
		var running []*load.Client
		for i, c := range clients {
			c.Request, c.Response, c.Warm = 64, 200, warm
			if i > 0 {
				c.Warm, c.Duration = margin, d
			}
			k, err := l.ask(ctx, c)
			if err != nil {
				return nil, err
			}
			defer k.Stop(syscall.SIGKILL)
			running = append(running, k)
		}
		before, err := measureUsage(r.pid(), l.cores.proxy)
		if err != nil {
			return nil, err
		}
		var results []load.Result
		for _, k := range running[1:] {
			res, err := k.Result()
			if err != nil {
				return nil, err
			}
			results = append(results, res)
		}
		after, err := measureUsage(r.pid(), l.cores.proxy)
		if err != nil {
			return nil, err
		}
		res, err := running[0].Result()
		if err != nil {
			return nil, err
		}
		requests, fresh := results[0], results[1]
		l.remarkErrors(requests)
		l.remarkErrors(fresh)
		u := after.minus(before)
		made := float64(res.Operations+res.Errors) / res.Seconds // at most rate
		figures = append(figures, figure{report.P99, "us", requests.P99}, figure{report.P50, "us", requests.P50},
			figure{report.P999, "us", requests.P999},
			figure{"new p50", "us", fresh.P50}, figure{"new p99", "us", fresh.P99},
			figure{report.Rate, "connections/s", float64(res.Operations) / res.Seconds},
			figure{report.Core, "share", u.coreTime().Seconds() / requests.Seconds},
			figure{report.CPU, "us/connection", u.process.Seconds() / requests.Seconds * micro / made},
			figure{report.Errors, "", float64(requests.Errors + fresh.Errors)})
		return figures, r.alive()
	}
}
