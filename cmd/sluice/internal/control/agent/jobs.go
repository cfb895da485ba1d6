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
	began time.Time
	done  chan struct{} // closed at its end, after err was set
	err   error
	left  []*lb.Service         // that it removes
	had   map[lb.ID]*lb.Service // what the engine had of each Service that differs; nil: nothing
	mends bool                  // another program has changed our rules
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

// begin lets the engine write, which is to have no job, and waits for it as long as the change may. removed are the
// Services that it is not to have any more. The job of one that takes longer stays.
func (a *Agent) begin(ctx context.Context, e *forwarder, d lb.Delta, removed []*lb.Service) error {
	if a.Forwarding != nil {
		a.Forwarding(&d)
	}
	j := &job{began: time.Now(), done: make(chan struct{}), left: removed, mends: a.damaged}
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
		j.had[s.ID] = nil // not for long
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

// serves returns a service port as the engine has it for certain while it may be writing; nil: it may have nothing.
func (e *forwarder) serves(x *servicePort) *lb.Service {
	if e.job != nil {
		if had, differs := e.job.had[x.id()]; differs {
			return had
		}
	}
	return x.passed[e.path]
}

// endLate notes what has become of the jobs for which no change has waited, and reports whether any has ended. The
// Services of an engine that has failed go elsewhere with the change that begins.
func (a *Agent) endLate() (any bool) {
	for _, e := range a.engines() {
		e.failed = nil // those that did not work are tried again
		if e.job == nil || !e.job.ended() {
			continue
		}
		if any = true; e.job.mends {
			a.looks.spend(e.job.began.Add(patience)) // until then a change has waited, which counts
		}
		a.lateLeft = append(a.lateLeft, left{e.path, e.job.left})
		if err := e.end(); err != nil && !errors.Is(err, context.Canceled) { // as Run has ended
			a.fail(e, err)
		}
		a.planner.whole = a.planner.whole || !e.synced
	}
	return any
}

// left is what an engine has removed after the change that has requested it.
type left struct {
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

// lateEnded reports whether a job has ended for which no change has waited.
func (a *Agent) lateEnded() bool {
	return slices.ContainsFunc(a.engines(), func(e *forwarder) bool { return e.job != nil && e.job.ended() })
}

// settleJobs waits until no engine writes. No change is being applied meanwhile.
func (a *Agent) settleJobs(ctx context.Context) error {
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

// hold keeps changes back that need engines which write, and those that have an address in common with them: each
// stays as it is.
func (p *planner) hold(changes []change) {
	var waits []int
	for i := range changes {
		if !p.ready(&changes[i]) {
			changes[i].held = true
			waits = append(waits, i)
		}
	}
	if len(waits) == 0 {
		return
	}
	at := make(map[lb.Frontend][]int)
	for i := range changes {
		changes[i].frontends(func(f lb.Frontend) { at[f] = append(at[f], i) })
	}
	for len(waits) > 0 {
		c := &changes[waits[0]]
		waits = waits[1:]
		c.frontends(func(f lb.Frontend) {
			for _, i := range at[f] {
				if !changes[i].held {
					changes[i].held = true
					waits = append(waits, i)
				}
			}
		})
		c.now, c.lags = c.old, false
	}
}

// ready reports whether a change can be carried out now. It goes on with what its engine has of the Service if that
// has the same addresses. Clients with affinity are handed over when no engine writes.
func (p *planner) ready(c *change) bool {
	for _, path := range kernelPaths {
		e := &p.engines[family(c.id().IPv6)][path]
		if e.job == nil && !p.resting {
			continue
		}
		to := c.now.choice.Path
		if c.moves() && c.now.service.AffinityTimeout > 0 && (path == to || path == c.old.choice.Path) {
			return false
		}
		if path != to {
			continue
		}
		has := e.serves(c.port)
		if has == nil || !has.SameAddresses(c.now.kernel) {
			return false
		}
		if !has.Equal(c.now.kernel) {
			c.now.kernel, c.lags = has, true
		}
	}
	return true
}

// frontends calls do for the frontends that a change is about, some of them more than once.
func (c *change) frontends(do func(lb.Frontend)) {
	for _, p := range []*piece{c.old, c.now} {
		for i := range p.entries {
			do(p.entries[i].Frontend)
		}
		for _, so := range p.sockets {
			do(so.frontend)
		}
		if p.kernel == nil {
			continue
		}
		for _, addr := range p.kernel.Addresses {
			do(lb.Frontend{Protocol: p.kernel.Protocol, Addr: addr.Addr})
		}
	}
}
