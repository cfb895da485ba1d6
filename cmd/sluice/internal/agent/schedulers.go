package agent

import (
	"fmt"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/lb"
)

// SchedulerFallback is a service port whose connections are not divided as it requests. What ipvs lacks its engine
// knows.
type SchedulerFallback struct {
	Service   lb.ID
	Requested string // by its annotation; or "weights"
	Path      Path   // that it is on
	Used      string // the algorithm instead
	Reason    string // empty: it is over
}

// scheduling returns how connections of a piece are not divided as it requests. Without Reason: in no way.
func (p *piece) scheduling() SchedulerFallback {
	if p == nothing || p.choice.Offloaded {
		return SchedulerFallback{}
	}
	s, path := p.service, p.choice.Path
	f := SchedulerFallback{Service: s.ID, Path: path, Requested: s.Scheduler}
	used, err := lb.Algorithm(s.Scheduler)
	switch {
	case path == Userspace && err != nil:
		f.Used, f.Reason = used, err.Error()
	case path != NFTables && path != IPTables:
	case s.Scheduler != "" && (err != nil || used != "rr" && used != "random"):
		f.Used, f.Reason = ownScheduler[path], fmt.Sprintf("data path %s has no other", path)
	case s.Weighted():
		f.Requested, f.Used = "weights", "equal shares"
		f.Reason = fmt.Sprintf("data path %s has no weights", path)
	}
	return f
}

// ownScheduler is what paths have that do not choose.
var ownScheduler = map[Path]string{NFTables: "rr", IPTables: "random"}

// reportSchedulers adds to the attempt which service ports do not have the algorithm that they request, and have it
// again, as far as that has not been reported.
func (a *Agent) reportSchedulers(plan *Plan, attempt *Attempt) {
	for i := range plan.changes {
		c := &plan.changes[i]
		was, reported := a.schedulers[c.id]
		now := c.now.scheduling()
		switch {
		case now.Reason != "" && now != was:
			a.Log.Warn("requested scheduler unavailable, falling back", zap.Stringer("service", c.id),
				zap.Stringer("protocol", c.id.Protocol), zap.Bool("ipv6", c.id.IPv6),
				zap.String("requested", now.Requested), zap.String("used", now.Used), zap.String("reason", now.Reason))
			a.schedulers[c.id] = now
			attempt.Schedulers = append(attempt.Schedulers, now)
		case now.Reason == "" && reported:
			delete(a.schedulers, c.id)
			was.Reason = ""
			attempt.Schedulers = append(attempt.Schedulers, was)
		}
	}
}
