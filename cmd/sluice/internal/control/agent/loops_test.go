package agent

import (
	"fmt"
	"slices"
	"testing"

	"github.com/sluice-lb/sluice/lb"
)

// TestLoops: an endpoint that leads back is reported once, when it begins and when it is over, and a Service that has
// no other is refused like one without endpoints.
func TestLoops(t *testing.T) {
	a, k := newAgent(t)
	var reported []string
	a.Observe = func(at Attempt) {
		for _, l := range at.Loops {
			reported = append(reported, fmt.Sprint(l.Service, l.Endpoints))
		}
	}
	own, ring := service(lb.UDP, "own", 1), service(lb.TCP, "ring", 2, 9)
	own.Backends = append(own.Backends, lb.Backend{Addr: own.Addresses[0].Addr, Ready: true, Serving: true})
	for range 2 {
		mustApply(t, a, own, ring)
	}
	if s := a.Status(); s.Looping != 1 || len(k.steered) != 1 {
		t.Errorf("steered %v, status %+v; want one Service, and one endpoint left out", k.steered, s)
	}
	front := service(lb.TCP, "front", 3, 1)
	front.Addresses[0].Addr = ring.Backends[0].Addr
	mustApply(t, a, own, ring, front)
	mustApply(t, a, ring)
	if s := a.Status(); s.Looping != 0 || len(k.steered) != 1 {
		t.Errorf("steered %v, status %+v; want one Service, and nothing left out", k.steered, s)
	}
	slices.Sort(reported[2:]) // of one attempt
	want := []string{"default/own [10.96.0.1:53]", "default/ring [10.244.0.9:53]", "default/own []", "default/ring []"}
	if !slices.Equal(reported, want) {
		t.Errorf("reported %q, want %q", reported, want)
	}
}
