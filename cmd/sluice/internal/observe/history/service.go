package history

import (
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

// Counts is what is open, and what was counted of a Service since it came.
type Counts struct{ Open, Picks, Failures, Refused, BytesIn, BytesOut uint64 }

// Rates are those of the last 5 to 10 s, of a second.
type Rates struct {
	Known bool // false: there was no look before that is old enough

	New, Failures, Refused, BytesIn, BytesOut float32
}

func ratesOf(happened *Counts, seconds float64) Rates {
	each := func(n uint64) float32 { return float32(float64(n) / seconds) }
	return Rates{true, each(happened.Picks), each(happened.Failures), each(happened.Refused), each(happened.BytesIn),
		each(happened.BytesOut)}
}

// Service is what there is of all ports of a Service together.
type Service struct {
	Of    lb.Name
	First *lb.Service // of its ports; not to be written to
	Ports int32

	// Endpoints are those of the port of which the fewest are eligible, and Failing are of all ports: those that are
	// ejected or whose check fails.
	Endpoints, Eligible, Failing int32

	Waiting uint64 // clients that wait for an endpoint, or for room at one

	Counts
	Rates Rates
}

// add adds a port.
func (s *Service) add(port *balancer.Sum) {
	all, eligible := int32(len(port.Service.Backends)), int32(port.Eligible)
	if s.Ports == 0 || int64(eligible)*int64(max(s.Endpoints, 1)) < int64(s.Eligible)*int64(max(all, 1)) {
		s.Endpoints, s.Eligible = all, eligible
	}
	s.Ports++
	s.Failing += int32(port.Failing)
	s.Waiting += port.Waiting
	s.Open += port.InFlight
	s.Picks += port.Picks
	s.Failures += port.Failures
	s.Refused += port.Refused
	s.BytesIn += port.BytesIn
	s.BytesOut += port.BytesOut
}

// State says how a Service does.
type State int

// The states, the worst last.
const (
	Well    State = iota
	Partial       // some endpoints get no new connections, or clients wait
	Failing       // connections have failed, or were refused, in the last seconds
	Down          // no endpoint gets new connections
)

// State returns the worst one that is true.
func (s *Service) State() State {
	switch {
	case s.Eligible == 0:
		return Down
	case s.Rates.Failures > 0 || s.Rates.Refused > 0:
		return Failing
	case s.Eligible < s.Endpoints || s.Failing > 0 || s.Waiting > 0:
		return Partial
	}
	return Well
}
