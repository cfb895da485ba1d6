package main

import (
	"fmt"
	"strings"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// What peers have of the algorithms that are compared, or what is nearest.
var (
	haproxyBalance = map[string]string{"lc": "leastconn", "p2c": "random(2)", "ewma": "random(2)"}
	nginxBalance   = map[string]string{"lc": "least_conn;", "p2c": "random two least_conn;",
		"ewma": "random two least_conn;"}
)

// The ports of the servers that algorithms are compared at.
const fastPort, fastPort2, slowPort = 8086, 8087, 8088

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
