package agent

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/sluice-lb/sluice/lb"
)

// maxDrains bounds what an operator may have drained at once: each change of Services looks through it.
const maxDrains = 256

// The errors of Drain, beside those of the data path.
var (
	ErrNotDrained = errors.New("it is not drained")
	ErrNoEndpoint = errors.New("there is no such endpoint")
	errManyDrains = fmt.Errorf("%d are drained already: undo one of them first", maxDrains)
)

// StrandedError says that a drain would leave Services without an endpoint.
type StrandedError struct{ Services []lb.Name }

// Error names a few of them.
func (e *StrandedError) Error() string {
	const few = 10
	var names []string
	for _, n := range e.Services[:min(few, len(e.Services))] {
		names = append(names, n.Namespace+"/"+n.Name)
	}
	if more := len(e.Services) - few; more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return fmt.Sprintf("no endpoint would be left for new connections to %s", strings.Join(names, ", "))
}

// drainRequest is what Drain asks of Run.
type drainRequest struct {
	lb.Drain
	undo, force bool
	done        chan error // has room for the answer
}

// drains are the operator's. They belong to the goroutine of Apply and Run.
type drains struct {
	all    []lb.Drain
	asked  []*drainRequest             // that are not answered yet
	taken  int                         // how many of these are in all
	begun  int                         // of those taken, how many engines have begun to write
	in     *lb.Drains                  // of all, with the addresses of nodes
	marked map[*lb.Service]*lb.Service // what in has made of the Services of the last turn
	next   int64                       // the deadline until which marked holds; 0: it does not
	over   <-chan time.Time            // at that deadline
}

// Drain keeps new connections from endpoints on every data path, or with undo does so no more. It returns once that is
// applied. A drain of what is drained already replaces it. Without force the error is a *StrandedError where a Service
// would have no endpoint left, and ErrNoEndpoint where nothing would be drained. It may be called from anywhere while
// Run runs.
func (a *Agent) Drain(ctx context.Context, d lb.Drain, undo, force bool) error {
	r := &drainRequest{d, undo, force, make(chan error, 1)}
	select {
	case a.requests <- r:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-r.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// attempted reports how an attempt went to those whose drains are applied. over: no engine writes, so all are. Else
// those are for which an engine has ended twice since.
func (d *drains) attempted(adopts, over bool, err error) {
	n := 0
	switch {
	case over:
		n = d.taken
	case adopts:
		n = d.begun
	}
	if err != nil {
		err = fmt.Errorf("the change is tried again until it is applied everywhere: %w", err)
	}
	for _, r := range d.asked[:n] {
		r.done <- err
	}
	d.asked, d.taken, d.begun = slices.Delete(d.asked, 0, n), d.taken-n, d.begun-min(n, d.begun)
	if adopts {
		d.begun = d.taken
	}
}

// drained returns what is desired with the endpoints marked that are drained, those that were asked for since included.
func (a *Agent) drained(services []*lb.Service) []*lb.Service {
	d, now := &a.drains, a.Now()
	for d.taken < len(d.asked) {
		r := d.asked[d.taken]
		if err := a.takeDrain(r, now); err != nil {
			r.done <- err
			d.asked = slices.Delete(d.asked, d.taken, d.taken+1)
			continue
		}
		d.taken++
	}
	in := lb.NewDrains(d.all, a.want.Hosts)
	if !in.Equal(d.in) || in != nil && d.next <= now {
		d.in, d.marked, d.next = in, nil, in.Next(now)
		a.LB.Drain(in)
	}
	d.over = nil
	if in == nil {
		return services
	}
	if d.next != math.MaxInt64 {
		d.over = time.After(time.Duration(d.next - now))
	}
	out, marked := make([]*lb.Service, len(services)), make(map[*lb.Service]*lb.Service, len(services))
	for i, s := range services {
		m := d.marked[s]
		if m == nil {
			m = d.in.Mark(s, now)
		}
		out[i], marked[s] = m, m
	}
	d.marked = marked
	return out
}

// takeDrain makes a request part of what is drained.
func (a *Agent) takeDrain(r *drainRequest, now int64) error {
	d := &a.drains
	at := slices.IndexFunc(d.all, r.Same)
	if r.undo {
		if at < 0 {
			return ErrNotDrained
		}
		d.all = slices.Delete(slices.Clone(d.all), at, at+1)
		return nil
	}
	if at < 0 && len(d.all) >= maxDrains {
		return errManyDrains
	}
	all := slices.Clone(d.all)
	if at >= 0 {
		all[at] = r.Drain
	} else {
		all = append(all, r.Drain)
	}
	if !r.force {
		one := lb.NewDrains([]lb.Drain{r.Drain}, a.want.Hosts)
		if one.Counts(a.LB.Table().Services())[0] == 0 {
			return ErrNoEndpoint
		}
		is, was := lb.NewDrains(all, a.want.Hosts), lb.NewDrains(d.all, a.want.Hosts)
		stranded := is.Stranded(a.LB.Table().Services(), was, now)
		if len(stranded) > 0 {
			return &StrandedError{stranded}
		}
	}
	d.all = all
	return nil
}
