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
		if slices.Equal(now.Endpoints, c.port.said.loop) {
			continue
		}
		if len(now.Endpoints) > 0 {
			a.Log.Warn("endpoints lead back to Sluice, and are left out", zap.Stringer("service", c.id()),
				zap.Stringer("protocol", c.id().Protocol), zap.Bool("ipv6", c.id().IPv6),
				zap.Stringers("endpoints", now.Endpoints))
		}
		c.port.said.loop = now.Endpoints
		attempt.Loops = append(attempt.Loops, now)
	}
}
