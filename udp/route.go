package udp

import (
	"errors"

	"github.com/sluice-lb/sluice/lb"
)

// maxAttempts is how many backends in a row may refuse a flow before it is
// given up; as many as a TCP connection is dialled.
const maxAttempts = 4

// errTried means that maxAttempts backends have refused.
var errTried = errors.New("every backend that was tried refused")

// route is where the datagrams of one client go, and since when. It is the part of a flow that
// does not depend on how datagrams are moved.
type route struct {
	choice   lb.Choice // not valid while leaving
	meter    lb.Meter  // of what choice has moved
	tried    *lb.Tried // backends that have refused since the last answer; nil at first
	attempts int       // how many
	active   int64     // time of the last datagram, ns
	leaving  int64     // time to be gone by, ns; 0 while the backend is in the table
}

// next gives c, a choice for flow, up because of err and returns another, or why there is none.
func (r *route) next(b *lb.Balancer, flow lb.Flow, c lb.Choice, err error) (lb.Choice, error) {
	r.meter.Flush(c)
	c.Done(err)
	if r.attempts++; r.attempts >= maxAttempts {
		return lb.Choice{}, errTried
	}
	if r.tried == nil {
		r.tried = new(lb.Tried)
	}
	r.tried.Add(c)
	flow.Tried = r.tried
	return b.Pick(flow)
}

// answered notes that the backend is there.
func (r *route) answered() { r.attempts, r.tried = 0, nil }

// stale reports whether the backend is neither ready nor serving any more, or the frontend
// is another Service's.
func (r *route) stale(t *lb.Table, f lb.Frontend) bool {
	owner, _, ok := t.Lookup(f)
	return !r.choice.Live() || !ok || owner.ID != r.choice.Service()
}

// release gives the choice back.
func (r *route) release() {
	r.meter.Flush(r.choice)
	r.choice.Done(nil)
	r.choice = lb.Choice{}
}

// rest returns how long the flow has to live, in ns, if nothing more comes.
func (r *route) rest(now int64, s *Server) int64 {
	until := r.active + int64(s.idleTimeout())
	if r.leaving != 0 {
		until = min(until, r.leaving)
	}
	return until - now
}
