package balancer

import (
	"sync/atomic"

	"github.com/sluice-lb/sluice/lb"
)

// Slow start: a backend that joins others, or returns to them, gets a part of its turns which grows with time, so that
// it can fill its caches. The words and the least part are those of Envoy (slow_start_config), and as with HAProxy's
// slowstart a proxy that starts itself has none. Hashes know no turns, and have none either.

// start is how a backend begins.
type start struct {
	window int64         // how long it takes, in ns
	began  atomic.Int64  // when it was first to have a turn, on the clock of Flow.Now; 0: not yet
	had    atomic.Uint64 // turns that were its by its part, in fullTurn
}

const (
	fullTurn  = 1 << 32
	leastPart = fullTurn / 10
)

// In a ring of more than manyInTurn a turn that is not taken goes to the next but so many that takes all of its own.
const manyInTurn, triesInTurn = 64, 16

// starts returns how a backend begins; nil: it does not.
func (b *backend) starts() *start {
	if h := b.health.Load(); h != nil {
		return h.start.Load()
	}
	return nil
}

// takes reports whether a backend takes its turn. The turns that it takes are exactly its part of those that it had.
func (st *start) takes(k *backend, now int64) bool {
	if st.began.Load() == 0 {
		st.began.CompareAndSwap(0, max(1, now))
	}
	part := st.part(now)
	if part == fullTurn {
		k.health.Load().start.CompareAndSwap(st, nil)
		return true
	}
	return st.had.Add(part)%fullTurn < part
}

// part returns which part of its turns a backend takes.
func (st *start) part(now int64) uint64 {
	switch age := now - st.began.Load(); {
	case st.began.Load() == 0 || age <= 0:
		return leastPart
	case age >= st.window:
		return fullTurn
	default:
		return max(leastPart, uint64(float64(age)/float64(st.window)*fullTurn))
	}
}

// slowly returns the backend whose turn it is, or one for it that needs no time if it does not take the turn.
func (s *service) slowly(from lb.Set, f *Flow, k *backend) *backend {
	st := k.starts()
	if st == nil || st.takes(k, f.Now) {
		return k
	}
	r, at := s.rings[from], &s.state.positions[from].retry
	if s.method == nil && len(r) > manyInTurn && f.Tried.none() { // to look at all would take long
		for range triesInTurn {
			if other := r.at(at.Add(1) - 1); other.starts() == nil {
				f.because(lb.BySlowStart)
				return other
			}
		}
	}
	if other := s.another(from, f, s.state.positions[from].retry.Add(1)-1, true); other != nil {
		f.because(lb.BySlowStart)
		return other
	}
	return k
}

// window returns how long the slow start of backends takes by these policies; 0 or less: they have none.
func window(p *lb.Policies) int64 {
	if scheduler, _ := lb.ParseScheduler(p.Scheduler); scheduler.Hashes() {
		return 0
	}
	return p.SlowStart
}

// startSlowly has backends of a service start slowly that take connections from now on, beside others that did so
// before. The caller holds Balancer.mu, and has set what they become.
func startSlowly(p *lb.Policies, backends []*backend) {
	window := window(p)
	stays := false
	for _, k := range backends {
		stays = stays || k.is(eligible) && k.nextCondition&eligible != 0
	}
	for _, k := range backends {
		switch {
		case window <= 0 || k.nextCondition&eligible == 0:
			if h := k.health.Load(); h != nil {
				h.start.Store(nil)
			}
		case stays && !k.is(eligible):
			k.record().start.Store(&start{window: window})
		}
	}
}
