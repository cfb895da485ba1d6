package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/sluice-lb/sluice/bench/load"
)

// Algorithms are compared at services of five servers, each with one worker, of which one is ten times as slow as the
// others.

// schedulers are the algorithms, by Sluice's names.
var schedulers = []string{"rr", "lc", "p2c", "ewma"}

const fastWork, slowWork = 2 * time.Millisecond, 20 * time.Millisecond

// worker is a server of one worker.
type worker struct {
	host, port int
	takes      time.Duration
}

// workers are those of a service: three hosts, two servers on two of them.
var workers = []worker{{0, slowPort, slowWork}, {0, fastPort, fastWork}, {1, fastPort, fastWork},
	{2, fastPort, fastWork}, {1, fastPort2, fastWork}}

// unevenServices returns one service for each algorithm.
func unevenServices(backends []string) (all []service) {
	var at []string
	for _, w := range workers {
		at = append(at, fmt.Sprintf("%s:%d", backends[w.host], w.port))
	}
	for i, scheduler := range schedulers {
		all = append(all, service{name: unevenName(scheduler), protocol: tcp, ip: fmt.Sprintf("10.96.0.%d", 20+i),
			port: 80, local: 30087 + i, scheduler: scheduler, uneven: at})
	}
	return all
}

func unevenName(scheduler string) string { return "uneven-" + scheduler }

// balanceWorkloads show what an algorithm makes of servers of which one is slow.
func balanceWorkloads() (all []workload) {
	for _, scheduler := range schedulers {
		all = append(all, workload{name: unevenName(scheduler), asked: true, balances: true,
			about: fmt.Sprintf("TCP, 16 clients with a connection for each request, to five servers of one worker "+
				"each; one needs 20 ms for a request and the others 2 ms; algorithm %s (HAProxy: %s; nginx: %s)",
				scheduler, haproxyBalance[scheduler], nginxBalance[scheduler]),
			run: asking(unevenName(scheduler), load.AskConfig{Kind: load.Short, Number: 16, Request: 64, Response: 200},
				"connection")})
	}
	return all
}

// chosen returns the services that a system has for a workload: those of SCTP, and those that compare algorithms, are
// by themselves, since their sockets would cost others.
func chosen(all []service, w workload) []service {
	return slices.DeleteFunc(slices.Clone(all), func(s service) bool {
		return (s.protocol == sctp) != (w.protocol == sctp) || (s.scheduler != "") != w.balances
	})
}
