package balancer

import (
	"sync/atomic"

	"github.com/sluice-lb/sluice/lb"
)

// How connections have ended.

type endCounts [len(lb.Ends{})]atomic.Uint64

// Ended counts how the connection of a has ended. It allocates at the first one of a service that does not end as it
// should.
func (a Admission) Ended(e lb.End) {
	if a.of != nil {
		a.of.ended(e)
	}
}

// Ended counts how a connection has ended that had no Admission.
func (b *Balancer) Ended(f lb.Frontend, e lb.End) {
	snap := b.load()
	if at, ok := snap.table.Find(&f); ok {
		snap.service(at.Slot).state.ended(e)
	}
}

func (s *state) ended(e lb.End) {
	if e == lb.Normal {
		return
	}
	counts := s.ends.Load()
	if counts == nil {
		s.ends.CompareAndSwap(nil, new(endCounts))
		counts = s.ends.Load()
	}
	counts[e].Add(1)
}

// allEnds returns what was counted; nil: nothing.
func (s *state) allEnds() *lb.Ends {
	if s.ends.Load() == nil {
		return nil
	}
	all := new(lb.Ends)
	s.readEnds(all)
	return all
}

// readEnds sets all to what was counted, if anything was.
func (s *state) readEnds(all *lb.Ends) {
	if counts := s.ends.Load(); counts != nil {
		for i := range counts {
			all[i] = counts[i].Load()
		}
	}
}

// resumeEnds goes on with what another Balancer has counted.
func (s *state) resumeEnds(all *lb.Ends) {
	if all == nil {
		return
	}
	counts := new(endCounts)
	for i := range all {
		counts[i].Store(all[i])
	}
	s.ends.Store(counts)
}
