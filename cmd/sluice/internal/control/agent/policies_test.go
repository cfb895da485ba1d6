package agent

import (
	"fmt"
	"slices"
	"testing"

	"github.com/sluice-lb/sluice/lb"
)

// TestPolicyFallbacks: what a path cannot do is reported once, counted, and over when it is.
func TestPolicyFallbacks(t *testing.T) {
	a, _, _, _ := withEngines(t)
	var told []string
	a.Observe = func(at Attempt) {
		for _, f := range at.Policies {
			told = append(told, fmt.Sprintf("%s %s, now %s: %t", f.Policy, f.Requested, f.Instead, !f.Over))
		}
	}
	for _, step := range []struct {
		path, scheduler string
		weights         [2]uint16
		want            []string
		count           int
	}{
		{"userspace", "lc", [2]uint16{70, 30}, nil, 0},
		{"userspace", "sed", [2]uint16{70, 30}, []string{"scheduler sed, now rr: true"}, 1},
		{"userspace", "sed", [2]uint16{60, 30}, nil, 1}, // known
		{"iptables", "sed", [2]uint16{60, 30}, []string{"scheduler sed, now random: true",
			"weight weights, now equal shares: true"}, 2},
		{"iptables", "random", [2]uint16{2, 2}, []string{"scheduler sed, now random: false",
			"weight weights, now equal shares: false"}, 0},
		{"iptables", "random", [2]uint16{2, 1}, []string{"weight weights, now equal shares: true"}, 1},
		{"ipvs", "sed", [2]uint16{2, 1}, []string{"weight weights, now equal shares: false"}, 0},
		{"iptables", "maglev", [2]uint16{1, 0}, []string{"scheduler maglev, now random: true"}, 1},
	} {
		told = nil
		s := requesting(service(lb.TCP, "web", 1, 1, 2), step.path)
		s.Policies.Scheduler = step.scheduler
		for i, w := range step.weights {
			s.Backends[i].Weight = w
		}
		mustApply(t, a, s)
		if n := a.Status().Policies; !slices.Equal(told, step.want) || n != step.count {
			t.Errorf("%+v: told %q, %d counted", step, told, n)
		}
	}
	mustApply(t, a)
	if n := a.Status().Policies; n != 0 || len(told) != 2 {
		t.Errorf("after the Service has gone: told %q, %d counted", told, n)
	}
}
