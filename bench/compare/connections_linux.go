package main

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/sluice-lb/sluice/bench/load"
	"github.com/sluice-lb/sluice/bench/report"
	"github.com/sluice-lb/sluice/internal/testbed"
)

const (
	// usualConnections is how many connections proxies are set up for, unless a workload has more.
	usualConnections = 20000

	// busyConnections bounds how many connections ask. The others stay idle.
	busyConnections = 64

	// opensPerSecond is how many connections a slow proxy accepts in a second, on a slow machine.
	opensPerSecond = 1000
)

// connectionCounts are how many connections are open.
var connectionCounts = []int{1, 10, 100, 1000, 5000, 20000, 100000}

// connectionWorkloads show what open connections cost.
func connectionWorkloads() (all []workload) {
	for _, n := range connectionCounts {
		all = append(all, workload{name: fmt.Sprintf("connections-%d", n), asked: true, connections: n,
			about: fmt.Sprintf("TCP, requests and answers on up to %d of %d open connections", busyConnections, n),
			run:   beside(n)})
	}
	return all
}

// beside measures requests on some of n connections, while the others are idle.
func beside(n int) work {
	busy := min(n, busyConnections)
	requests := asking(sizedService, load.AskConfig{Kind: load.KeepAlive, Number: busy, Request: 64, Response: 200},
		"request")
	return func(ctx context.Context, l *lab, r *running, d time.Duration) ([]figure, error) {
		if r.process == nil {
			return nil, nil
		}
		if n == busy {
			return requests(ctx, l, r, d)
		}
		opening := time.Duration(n/opensPerSecond) * time.Second
		ctx, cancel := context.WithTimeout(ctx, opening+d+2*testbed.Patience)
		defer cancel()
		// A client has 64,511 ports for each address.
		addrs := append(r.addrs(l.service(sizedService)), r.addrs(l.service(calmService))...)
		k, err := l.ask(ctx, load.AskConfig{Kind: load.Idle, Number: n - busy, Addrs: addrs, Request: 64,
			Response: 200})
		if err != nil {
			return nil, err
		}
		defer k.Stop(syscall.SIGKILL)
		if err := l.settle(ctx, r.pid()); err != nil {
			return nil, err
		}
		resident, err := testbed.ResidentBytes(r.pid())
		if err != nil {
			return nil, err
		}
		figures, err := requests(ctx, l, r, d)
		k.End()
		res, endErr := k.Result()
		if err = errors.Join(err, endErr); err != nil {
			return nil, err
		}
		l.remarkErrors(res)
		if res.Established < n-busy || res.Finished > 0 {
			l.remark("%d idle connections of %d, and %d ended", res.Established, n-busy, res.Finished)
		}
		return append(figures, figure{"resident", "MiB", float64(resident) / (1 << 20)},
			figure{"idle " + report.Errors, "", float64(res.Errors + uint64(res.Finished))}), nil
	}
}

// connections is how many a proxy is set up for.
func (l *lab) connections() int { return min(carries(l.descriptors), max(usualConnections, l.open)) }

// carries returns how many connections a proxy with some descriptors can have. HAProxy refuses to start if two for
// each, and those of the pipes that it splices through, are beyond the limit.
func carries(descriptors int) int { return (descriptors - 200) * 2 / 5 }

// hostLacks reports why a workload cannot run on this machine, whose processes may have some descriptors; empty if it
// can.
func (w workload) hostLacks(descriptors int) string {
	if most := carries(descriptors); w.connections > most {
		return fmt.Sprintf("the limit of %d descriptors is enough for %d connections", descriptors, most)
	}
	return ""
}
