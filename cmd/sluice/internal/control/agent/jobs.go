package agent

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/lb"
)

// patience is how long a change waits for an engine to write it. One that takes longer goes on beside the table:
// the Services that need it stay where they are until it has ended, and others do not wait.
const patience = 100 * time.Millisecond

// job is a Sync of an engine that runs.
type job struct {
	began   time.Time
	done    chan struct{} // closed at its end, after err was set
	err     error
	removes []*lb.Service         // that it removes
	had     map[lb.ID]*lb.Service // what the engine had of each Service that differs; nil: nothing
	mends   bool                  // another program has changed our rules
}

// ended reports whether the job is over.
func (j *job) ended() bool {
	select {
	case <-j.done:
		return true
	default:
		return false
	}
}

// begin lets an engine write that has no job, and waits for it. An agent that is not patient waits for patience only;
// an engine that takes longer keeps its job. removed are the Services that the engine is to lose.
func (a *Agent) begin(ctx context.Context, e *forwarder, d lb.Delta, removed []*lb.Service) error {
	if a.Forwarding != nil {
		a.Forwarding(&d)
	}
	j := &job{began: time.Now(), done: make(chan struct{}), removes: removed, mends: a.damaged}
	e.job, e.synced = j, true // until it fails
	engine, node := e.engine, e.node
	go func() {
		defer func() {
			close(j.done)
			select {
			case a.jobEnded <- struct{}{}:
			default: // Run is still to look
			}
		}()
		j.err = engine.Sync(ctx, d, node)
	}()
	var over <-chan time.Time
	if !a.patient {
		timer := time.NewTimer(patience)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-j.done:
		return e.end()
	case <-over:
	}
	a.Log.Info("a data path takes long to write: its Services wait, others do not", zap.Stringer("data_path", e.path),
		zap.Bool("ipv6", e.ipv6))
	j.had = make(map[lb.ID]*lb.Service, len(d.Added)+len(d.Changed)+len(removed))
	for _, s := range d.Added {
		j.had[s.ID] = nil
	}
	for _, c := range d.Changed {
		j.had[c.New.ID] = c.Old
	}
	for _, s := range removed {
		j.had[s.ID] = nil // it may be there still
	}
	return nil
}

// end notes how the job has ended.
func (e *forwarder) end() error {
	err := e.job.err
	if e.job = nil; err != nil {
		e.synced = false
	}
	return err
}

// serves returns a service port as the engine had it before its job, or has it if it has no job; nil: it had nothing.
func (e *forwarder) serves(x *row) *lb.Service {
	if e.job != nil {
		if had, differs := e.job.had[x.id()]; differs {
			return had
		}
	}
	return x.passed[e.path]
}

// collectLate notes what has become of the jobs for which no change has waited, and reports whether any has ended. The
// Services of an engine that has failed go elsewhere with the change that begins.
func (a *Agent) collectLate() (any bool) {
	for _, e := range a.engines() {
		e.failed = nil // each attempt tries it again
		if e.job == nil || !e.job.ended() {
			continue
		}
		if any = true; e.job.mends {
			a.looks.spend(e.job.began.Add(patience)) // until then a change has waited, which counts
		}
		a.lateRemoved = append(a.lateRemoved, removal{e.path, e.job.removes})
		if err := e.end(); err != nil && !errors.Is(err, context.Canceled) { // as Run has ended
			a.fail(e, err)
		}
		a.planner.whole = a.planner.whole || !e.synced
	}
	return any
}

// removal is what an engine has removed after the change that has requested it.
type removal struct {
	path     Path
	services []*lb.Service
}

// fail notes that an engine does not work, until the next attempt.
func (a *Agent) fail(e *forwarder, err error) {
	e.failed = err
	a.Log.Error("forwarding in the kernel failed, falling back", zap.Stringer("data_path", e.path),
		zap.Bool("ipv6", e.ipv6), zap.Error(err))
}

// failures returns why engines do not work in this attempt.
func (a *Agent) failures() error {
	var errs []error
	for _, e := range a.engines() {
		errs = append(errs, e.failed)
	}
	return errors.Join(errs...)
}

// writing returns since when an engine writes; zero: none does.
func (a *Agent) writing() (since time.Time) {
	for _, e := range a.engines() {
		if e.job != nil && (since.IsZero() || e.job.began.Before(since)) {
			since = e.job.began
		}
	}
	return since
}

// anyLateDone reports whether a job has ended for which no change has waited.
func (a *Agent) anyLateDone() bool {
	return slices.ContainsFunc(a.engines(), func(e *forwarder) bool { return e.job != nil && e.job.ended() })
}

// waitForJobs waits until no engine writes. No change is being applied meanwhile.
func (a *Agent) waitForJobs(ctx context.Context) error {
	for i := range a.forwarders {
		for path := range a.forwarders[i] {
			j := a.forwarders[i][path].job
			if j == nil {
				continue
			}
			select {
			case <-j.done:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return nil
}
