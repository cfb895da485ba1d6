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

// wait returns how long to wait before rules may be written.
func (p *pace) wait(now time.Time) time.Duration {
	if p.period <= 0 {
		return 0
	}
	return max(0, p.next.Add(-(paceBurst-1)*p.period).Sub(now))
}

// note notes that rules are written now.
func (p *pace) note(now time.Time) {
	if p.next.Before(now) {
		p.next = now
	}
	p.next = p.next.Add(p.period)
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

// writes reports whether applying this means to write rules, and touches nothing. That a
// socket has to be opened or closed means it, since rules lead to sockets.
func (a *Agent) writes(m *move, want Desired) bool {
	a.sockets.fixed, a.sockets.lacking = true, false
	wanted, plan, _ := a.arrange(m, want)
	a.sockets.fixed = false
	a.spareTCP = plan.TCP[:0]
	return a.sockets.lacking || a.sockets.unwanted(wanted) || a.differ(m, plan)
}

// differ reports whether rules are to be others than they are. If they are not, an
// engine and steering that are told to make them find that they have nothing to do.
func (a *Agent) differ(m *move, plan *redirect.Plan) bool {
	for _, f := range a.families() {
		if f.Steer != nil && (a.written.plan == nil || !a.written.plan.Equal(*plan)) {
			return true
		}
	}
	for _, e := range a.engines() {
		was := a.written.engines[e.familyPath]
		services, _ := a.on(e.familyPath, m, false)
		if was == nil || !slices.EqualFunc(was.services, services, func(a, b lb.Service) bool { return a.Equal(&b) }) ||
			len(services) > 0 && !reflect.DeepEqual(was.node, m.node) {
			return true
		}
	}
	return false
}
