package api

import (
	"net/url"
	"time"

	"github.com/sluice-lb/sluice/internal/flows/report"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

func (s *Sources) endpoints(q url.Values) (any, error) {
	unhealthy, counts := q.Has("unhealthy"), s.counts()
	return pageOf(s, q, func(to []Endpoint, v *balancer.View, at, limit int) ([]Endpoint, int) {
		for ; at < len(v.Stats.Backends); at++ {
			if len(to) >= limit {
				return to, at
			}
			if e := s.endpoint(v, at, counts[v.Stats.ID]); !unhealthy || e.State != Ready {
				to = append(to, e)
			}
		}
		return to, 0
	})
}

// Endpoints returns the first endpoints of a service port; none: there is no such port.
func (s *Sources) Endpoints(of ID, limit int) (out []Endpoint) {
	id := lb.ID{Namespace: of.Namespace, Name: of.Name, Port: of.Port, IPv6: of.Family == ipv6}
	for _, p := range protocols {
		if p.String() == of.Protocol {
			id.Protocol = p
		}
	}
	v, _ := s.LB.Counters().View(id)
	counted := s.counts()[id]
	for at := range v.Stats.Backends[:min(limit, len(v.Stats.Backends))] {
		out = append(out, s.endpoint(&v, at, counted))
	}
	return out
}

// endpoint says what there is of one endpoint, by its position in the statistics. counted is what the kernel has
// counted of the service port; nil: nothing.
func (s *Sources) endpoint(v *balancer.View, at int, counted *report.Counted) Endpoint {
	n := &v.Stats.Backends[at]
	e := Endpoint{Service: idOf(v.Stats.ID), Address: n.Addr.String(), Eligible: n.Eligible, Weight: 1,
		Counted: countedOf(n.Counts, n.InFlight), State: Gone, Reason: "no endpoint of the Service any more"}
	if counted != nil {
		one := counted.Endpoints[n.Addr]
		one.Counted = counted.Counted
		e.Kernel = inKernel(&one, counted.Chosen)
	}
	if at >= len(v.Service.Backends) {
		return e
	}
	b := &v.Service.Backends[at]
	e.Ready, e.Serving, e.Terminating, e.Local, e.Weight = b.Ready, b.Serving, b.Terminating, b.Local, max(b.Weight, 1)
	if b.Maintenance {
		e.Weight = 0
	}
	e.NodeHint, e.ZoneHint = hintOf(b.NodeHint), hintOf(b.ZoneHint)
	e.State, e.Reason = stateOf(b), v.Why[at]
	if drain, ok := s.LB.Drains().Of(v.Service.ID, b.Addr); ok && e.State == Drained {
		by := s.drained(&drain)
		e.Reason = by.why()
	}
	h := &n.Health
	if h.Failing {
		e.Check = h.Why
		if e.State == Ready {
			e.State, e.Reason = CheckFailing, h.Why
		}
	}
	if h.Ejected {
		e.Ejection = &Ejection{Since: s.when(h.At), Until: s.when(h.Until), Times: h.Times, Reason: h.Reason}
		if e.State == Ready {
			e.State, e.Reason = Ejected, h.Reason
		}
	}
	return e
}

// stateOf is what an endpoint's objects say.
func stateOf(b *lb.Backend) string {
	switch {
	case b.Loop:
		return Loop
	case b.Drained:
		return Drained
	case b.Maintenance:
		return Maintenance
	case b.Ready:
		return Ready
	case b.Terminating:
		return Terminating
	}
	return NotReady
}

func hintOf(h lb.Hint) string {
	switch h {
	case lb.HintHere:
		return "here"
	case lb.HintElsewhere:
		return "elsewhere"
	}
	return ""
}

// when is a time of the clock of balancer.Flow.
func (s *Sources) when(at int64) time.Time {
	return time.Now().Add(time.Duration(at - s.Now())).Round(time.Millisecond)
}
