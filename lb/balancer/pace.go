package balancer

import (
	"math"

	"github.com/sluice-lb/sluice/lb"
)

// Pace is what algorithms remember of a backend. Times are on the clock of Flow.Now.
type Pace struct {
	Delay    int64 // the mean time that it takes to accept, in ns; 0: it is not known, or the algorithm does not ask
	Measured int64 // when it was that, modulo 2^52 ns

	Starts bool   // it starts slowly
	Began  int64  // when; 0: it has not had a turn
	Had    uint64 // start.had
}

// pace returns what is to outlive this Balancer.
func (s *service) pace(k *backend) (p Pace) {
	if s.method != nil && s.method.algorithm == lb.PeakEWMA {
		latency := k.latency.Load()
		p.Delay = int64(math.Float32frombits(uint32(latency >> 32)))
		p.Measured = int64(uint32(latency)) << latencyTick
	}
	if st := k.starts(); st != nil {
		p.Starts, p.Began, p.Had = true, st.began.Load(), st.had.Load()
	}
	return p
}

// resumePace has a backend go on at the pace that it had with another Balancer, if a slow start may take some time.
func (b *backend) resumePace(p *Pace, window int64) {
	if p.Delay > 0 {
		b.latency.Store(uint64(math.Float32bits(float32(p.Delay)))<<32 | uint64(tick(p.Measured)))
	}
	if p.Starts && window > 0 && b.is(eligible) {
		st := &start{window: window}
		st.began.Store(p.Began)
		st.had.Store(p.Had)
		b.record().start.Store(st)
	} else if h := b.health.Load(); h != nil {
		h.start.Store(nil)
	}
}
