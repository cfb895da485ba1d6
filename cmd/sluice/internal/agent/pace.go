package agent

import (
	"reflect"
	"slices"
	"time"

	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/redirect"
)

// paceBurst is how many writings may follow each other at once after quiet: to create
// a Service and then its endpoints are two changes, and neither should wait. kube-proxy
// allowed as many until 1.35.
const paceBurst = 2

// pace bounds how often the kernel's rules are written, from start to start: once in a
// period in the long run, paceBurst times at once after as many periods of quiet. With a
// period of 0 it bounds nothing.
type pace struct {
	period time.Duration
	next   time.Time // when, at one writing in each period, the next would be due
}

// take takes leave to write now, or returns how long to wait before asking again.
func (p *pace) take(now time.Time) (wait time.Duration) {
	if wait = p.next.Add(-(paceBurst - 1) * p.period).Sub(now); wait > 0 && p.period > 0 {
		return wait
	}
	if p.next.Before(now) {
		p.next = now
	}
	p.next = p.next.Add(p.period)
	return 0
}

// written is what the kernel's rules were made from, nil where they are not known to
// be as they should.
type written struct {
	plan    *redirect.Plan
	engines map[familyPath]*forwarded
}

// forwarded is what an engine has been told to forward.
type forwarded struct {
	services []lb.Service
	node     lb.Node
}

// writes reports whether applying this means to write rules. Where it does not, an
// engine and steering that are told it find that they have nothing to do.
func (a *Agent) writes(m *move, plan *redirect.Plan, node lb.Node) bool {
	for _, f := range a.families() {
		if f.Steer != nil && (a.written.plan == nil || !a.written.plan.Equal(*plan)) {
			return true
		}
	}
	for _, e := range a.engines() {
		was := a.written.engines[e.familyPath]
		services, _ := a.on(e.familyPath, m, false)
		if was == nil || !slices.EqualFunc(was.services, services, sameService) ||
			len(services) > 0 && !reflect.DeepEqual(was.node, node) {
			return true
		}
	}
	return false
}

// sameService compares by what is in the slices, and does not look there if they are
// the very same.
func sameService(a, b lb.Service) bool { return reflect.DeepEqual(a, b) }
