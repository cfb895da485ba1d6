package balancer

import "github.com/sluice-lb/sluice/lb"

// While a service that requests it (Policies.Hold) has no backend, its clients wait for one in place of being refused.

const (
	// manyHeld is how many clients of a service port wait at the same time unless it requests otherwise.
	manyHeld = 1024

	// needEvery is how often OnNeed is called for a service port at most, in ns.
	needEvery = int64(30e9)
)

// Held is the place of a client that waits. The zero Held is none.
type Held struct{ of *state }

// Valid reports whether there is a place.
func (h Held) Valid() bool { return h.of != nil }

// Hold gives a client, for which Pick has returned ErrNoBackend, a place to wait for a backend, and says for how long,
// in ns. Not valid: the service requests no such thing, or, if full, as many wait as may. now is on the clock of
// Flow.Now.
func (qs Queues) Hold(f *Flow, now int64) (h Held, wait int64, full bool) {
	snap := qs.b.load()
	at, ok := snap.table.Find(&f.Frontend)
	if !ok {
		return Held{}, 0, false
	}
	s := snap.service(at.Slot).state
	p := s.policies.Load()
	if p.Hold <= 0 {
		return Held{}, 0, false
	}
	most := int64(p.HoldConnections)
	if most == 0 {
		most = manyHeld
	}
	if s.held.Add(1) > most {
		s.held.Add(-1)
		s.noBackend.Add(1)
		return Held{}, 0, true
	}
	s.need(now)
	return Held{s}, p.Hold, false
}

// need reports that a service needs backends, unless that was said a moment ago.
func (s *state) need(now int64) {
	last := s.needed.Load()
	if s.balancer.OnNeed != nil && (last == 0 || now-last >= needEvery) && s.needed.CompareAndSwap(last, now) {
		s.balancer.OnNeed(s.id)
	}
}

// ResumeHold takes a place for a client that waits at another Balancer already, also beyond the bound. Not valid: no
// service has the frontend.
func (qs Queues) ResumeHold(f *Flow) Held {
	snap := qs.b.load()
	at, ok := snap.table.Find(&f.Frontend)
	if !ok {
		return Held{}
	}
	s := snap.service(at.Slot).state
	s.held.Add(1)
	return Held{s}
}

// Refused counts a client that has waited for long enough, and is refused.
func (h Held) Refused() { h.of.noBackend.Add(1) }

// End gives the place back. It may be called for none.
func (h *Held) End() {
	if h.of != nil {
		h.of.held.Add(-1)
		h.of = nil
	}
}

// HoldEnds reports whether the wait of f is over: Pick has a backend now, or an error other than ErrNoBackend.
func (qs Queues) HoldEnds(f *Flow) bool {
	snap := qs.b.load()
	at, ok := snap.table.Find(&f.Frontend)
	return !ok || len(snap.service(at.Slot).rings[lb.ClusterSet]) > 0
}
