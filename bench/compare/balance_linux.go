package main

import (
	"fmt"
	"slices"

	"github.com/sluice-lb/sluice/bench/load"
)

// balanceWorkloads show what an algorithm makes of servers of which one is slow.
func balanceWorkloads() (all []workload) {
	for _, scheduler := range schedulers {
		all = append(all, workload{name: unevenName(scheduler), asked: true, balances: true,
			about: fmt.Sprintf("TCP, 16 clients with a connection for each request, to five servers of one worker each; "+
				"one needs 20 ms for a request and the others 2 ms; algorithm %s (HAProxy: %s; nginx: %s)", scheduler,
				haproxyBalance[scheduler], nginxBalance[scheduler]),
			run: asking(unevenName(scheduler), load.AskConfig{Kind: load.Short, Number: 16, Request: 64, Response: 200},
				"connection")})
	}
	return all
}

// chosen returns the services that a system has for a workload: those of SCTP, and those that compare algorithms, are by
// themselves, since their sockets would cost others.
func chosen(all []service, w workload) []service {
	return slices.DeleteFunc(slices.Clone(all), func(s service) bool {
		return (s.protocol == sctp) != (w.protocol == sctp) || (s.scheduler != "") != w.balances
	})
}
