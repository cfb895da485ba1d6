package history

import (
	"time"

	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

const (
	// ReportEvery is the time between two reports of one Service port and reason.
	ReportEvery = 5 * time.Minute

	// mostReports is how many reports one sample makes, as few as the API server takes of Events; the others wait.
	mostReports = 1
)

// Refusals are clients of a Service port that were refused for one reason.
type Refusals struct {
	Service lb.ID
	Why     lb.End
	Clients uint64
	Within  time.Duration
}

// refusals compares from sample to sample how many clients were refused.
type refusals struct {
	report   func(Refusals) // nil: nothing is reported
	of       map[lb.ID]*refused
	at       time.Time // of the present sample, and
	last     time.Time // of the one before; zero: there is none
	reported int       // at the present sample
}

// refused is what is known of a Service port whose clients were refused.
type refused struct {
	seen  time.Time // the last sample
	ends  lb.Ends   // reported
	marks map[lb.End]mark
}

// mark says since when clients are not reported, and when some were last.
type mark struct{ from, reported time.Time }

// begin begins a sample, and end ends it: a Service port that has gone is forgotten.
func (r *refusals) begin(now time.Time) { r.last, r.at, r.reported = r.at, now, 0 }

func (r *refusals) end() {
	for id, s := range r.of {
		if s.seen != r.at {
			delete(r.of, id)
		}
	}
}

// note reports what is new of a Service port. At the first sample all was counted by the process before.
func (r *refusals) note(port *balancer.Sum) {
	if r.report == nil || port.Ends == (lb.Ends{}) {
		return
	}
	s := r.of[port.Service.ID]
	if s == nil {
		if r.of == nil {
			r.of = make(map[lb.ID]*refused)
		}
		s = &refused{marks: make(map[lb.End]mark)}
		if r.last.IsZero() {
			s.ends = port.Ends
		}
		r.of[port.Service.ID] = s
	}
	s.seen = r.at
	for at, n := range port.Ends {
		why := lb.End(at)
		if !why.Refuses() || n == 0 {
			continue
		}
		m, ok := s.marks[why]
		if !ok {
			m.from = r.last
		}
		if n < s.ends[why] {
			s.ends[why] = 0 // the Service has gone and come again
		}
		switch clients := n - s.ends[why]; {
		case clients == 0:
			m.from = r.at
		case r.reported < mostReports && (m.reported.IsZero() || r.at.Sub(m.reported) >= ReportEvery):
			r.report(Refusals{port.Service.ID, why, clients, r.at.Sub(m.from)})
			r.reported++
			m = mark{r.at, r.at}
			s.ends[why] = n
		}
		s.marks[why] = m
	}
}
