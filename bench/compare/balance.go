package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/sluice-lb/sluice/bench/testbed"
)

// Algorithms are compared at services of five servers, each with one worker, of which one is ten times as slow as the
// others.

// schedulers are the algorithms, by Sluice's names.
var schedulers = []string{"rr", "lc", "p2c", "ewma"}

// What peers have of them, or what is nearest.
var (
	haproxyBalance = map[string]string{"lc": "leastconn", "p2c": "random(2)", "ewma": "random(2)"}
	nginxBalance   = map[string]string{"lc": "least_conn;", "p2c": "random two least_conn;",
		"ewma": "random two least_conn;"}
)

const (
	fastPort, fastPort2, slowPort = 8086, 8087, 8088

	fastWork, slowWork = 2 * time.Millisecond, 20 * time.Millisecond
)

// worker is a server of one worker.
type worker struct {
	host, port int
	takes      time.Duration
}

// workers are those of a service: three hosts, two servers on two of them.
var workers = []worker{{0, slowPort, slowWork}, {0, fastPort, fastWork}, {1, fastPort, fastWork}, {2, fastPort, fastWork},
	{1, fastPort2, fastWork}}

// unevenServices returns one service for each algorithm.
func unevenServices(backends []string) (all []service) {
	var at []string
	for _, w := range workers {
		at = append(at, fmt.Sprintf("%s:%d", backends[w.host], w.port))
	}
	for i, scheduler := range schedulers {
		all = append(all, service{name: unevenName(scheduler), protocol: tcp, ip: fmt.Sprintf("10.96.0.%d", 20+i), port: 80,
			local: 30087 + i, scheduler: scheduler, uneven: at})
	}
	return all
}

func unevenName(scheduler string) string { return "uneven-" + scheduler }

// unevenManifests writes a service for Sluice: endpoints of one port to a slice.
func (s service) unevenManifests() []string {
	annotated := fmt.Sprintf("\n  annotations:\n    sluice.io/scheduler: %s\nspec:", s.scheduler)
	out := []string{strings.Replace(testbed.ServiceManifest(s.name, s.addr(), s.protocol, ""), "\nspec:", annotated, 1)}
	for i, port := range []int{fastPort, fastPort2, slowPort} {
		var hosts []string
		for _, target := range s.uneven {
			if host, ok := strings.CutSuffix(target, fmt.Sprint(":", port)); ok {
				hosts = append(hosts, host)
			}
		}
		out = append(out, testbed.SliceManifest(s.name, i+1, port, s.protocol, hosts...))
	}
	return out
}
