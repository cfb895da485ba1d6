package agent

import (
	"fmt"
	"slices"
	"testing"

	"github.com/sluice-lb/sluice/lb"
)

// TestSchedulerFallbacks: what a path cannot do is reported once, counted, and over when it is.
func TestSchedulerFallbacks(t *testing.T) {
	a, _, _, _ := withEngines(t)
	var told []string
	a.Observe = func(at Attempt) {
		for _, f := range at.Schedulers {
			told = append(told, fmt.Sprintf("%s by %s, %s: %t", f.Requested, f.Used, f.Path, f.Reason != ""))
		}
	}
	for _, step := range []struct {
		path, scheduler string
		weights         [2]uint16
		want            []string
		count           int
	}{
		{"userspace", "lc", [2]uint16{70, 30}, nil, 0},
		{"userspace", "sed", [2]uint16{70, 30}, []string{"sed by rr, userspace: true"}, 1},
		{"userspace", "sed", [2]uint16{60, 30}, nil, 1}, // known
		{"iptables", "sed", [2]uint16{60, 30}, []string{"sed by random, iptables: true"}, 1},
		{"iptables", "random", [2]uint16{2, 2}, []string{"sed by random, iptables: false"}, 0},
		{"iptables", "random", [2]uint16{2, 1}, []string{"weights by equal shares, iptables: true"}, 1},
		{"ipvs", "sed", [2]uint16{2, 1}, []string{"weights by equal shares, iptables: false"}, 0},
		{"iptables", "maglev", [2]uint16{1, 0}, []string{"maglev by random, iptables: true"}, 1},
	} {
		told = nil
		s := requesting(service(lb.TCP, "web", 1, 1, 2), step.path)
		s.Scheduler = step.scheduler
		for i, w := range step.weights {
			s.Backends[i].Weight = w
		}
		mustApply(t, a, s)
		if n := a.Status().Schedulers; !slices.Equal(told, step.want) || n != step.count {
			t.Errorf("%+v: told %q, %d counted", step, told, n)
		}
	}
	mustApply(t, a)
	if n := a.Status().Schedulers; n != 0 || len(told) != 2 {
		t.Errorf("after the Service has gone: told %q, %d counted", told, n)
	}
}
