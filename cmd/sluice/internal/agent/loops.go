package agent

import (
	"net/netip"
	"slices"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/lb"
)

// Loop is the endpoints of a service port that lead back to Sluice, and are left out; none: not any more.
type Loop struct {
	Service   lb.ID
	Endpoints []netip.AddrPort
}

// reportLoops adds to the attempt which service ports have endpoints that lead back to Sluice, as far as that has not
// been reported.
func (a *Agent) reportLoops(plan *Plan, attempt *Attempt) {
	for i := range plan.changes {
		c := &plan.changes[i]
		now := Loop{Service: c.id()}
		if c.now != nothing {
			now.Endpoints = c.now.service.Looping()
		}
		was, reported := a.loops[c.id()]
		switch {
		case slices.Equal(now.Endpoints, was.Endpoints):
			continue
		case len(now.Endpoints) > 0:
			a.Log.Warn("endpoints lead back to Sluice, and are left out", zap.Stringer("service", c.id()),
				zap.Stringer("protocol", c.id().Protocol), zap.Bool("ipv6", c.id().IPv6),
				zap.Stringers("endpoints", now.Endpoints))
			a.loops[c.id()] = now
		case reported:
			delete(a.loops, c.id())
		}
		attempt.Loops = append(attempt.Loops, now)
	}
}
