package agent

import (
	"slices"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/policies"
	"github.com/sluice-lb/sluice/lb"
)

// PolicyFallback is a policy that a service port requests and the path that it is on does not have. What ipvs lacks of
// schedulers its engine knows.
type PolicyFallback struct {
	Service lb.ID
	policies.Shortfall
	Over bool // it has it again, or does not request it any more
}

// shortfalls returns what a piece requests and its path does not have.
func (p *piece) shortfalls() []policies.Shortfall {
	if p == nothing || p.choice.Offloaded {
		return nil
	}
	return policies.Shortfalls(p.service, p.choice.Path.String())
}

// reportPolicies adds to the attempt which service ports do not have the policies that they request, and have them
// again, as far as that has not been reported.
func (a *Agent) reportPolicies(plan *Plan, attempt *Attempt) {
	for i := range plan.changes {
		c := &plan.changes[i]
		was, now := c.port.said.policies, c.now.shortfalls()
		for _, s := range now {
			if slices.Contains(was, s) {
				continue
			}
			a.Log.Warn("requested policy unavailable on the data path", zap.Stringer("service", c.id()),
				zap.Stringer("protocol", c.id().Protocol), zap.Bool("ipv6", c.id().IPv6),
				zap.String("policy", s.Policy), zap.String("requested", s.Requested),
				zap.String("instead", s.Instead), zap.String("reason", s.Reason))
			attempt.Policies = append(attempt.Policies, PolicyFallback{Service: c.id(), Shortfall: s})
		}
		for _, s := range was {
			if !slices.ContainsFunc(now, func(n policies.Shortfall) bool { return n.Policy == s.Policy }) {
				attempt.Policies = append(attempt.Policies, PolicyFallback{c.id(), s, true})
			}
		}
		c.port.said.policies = now
	}
}
