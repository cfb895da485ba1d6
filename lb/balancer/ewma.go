package balancer

import "math"

// Peak EWMA, as Linkerd has it: a mean of the time that a backend takes to accept, which follows a rise at once and a
// fall within seconds, times what is in flight. At this layer the time is that of the connect, or until the first
// answer. A backend that nothing is known of counts as fast: with Linkerd's default_rtt of 30 ms one that joins others
// which answer in 0.1 ms would have no connection for half a minute. It has at most two turns of a round, as any.

const (
	halfLife    = 6_931_471_806 // ns in which what was measured fades to a half: in 10 s to 1/e
	noise       = 10e6          // ns: what differs by less is how busy this host is
	failedCosts = 1e9           // ns that count where the backend did not accept

	latencyTick = 20 // time in backend.latency is in 2^20 ns: about a millisecond
)

// Took says how long the backend has taken to accept a connection, or to give the first answer, in ns. now is on the
// clock of Flow.Now. It is for algorithms that go by it.
func (c Choice) Took(took, now int64) {
	if c.backend != nil {
		c.backend.observe(took, now)
	}
}

// sooner reports whether one connection more would be accepted sooner by the backend at i than by that at j. Times that
// differ by noise say nothing: then it is who has fewer in flight.
func (t *terms) sooner(r ring, i, j int, now int64) bool {
	if math.Abs(r[i].answersIn(now)-r[j].answersIn(now)) <= noise {
		return t.inFlight(r, i) < t.inFlight(r, j)
	}
	return t.delay(r, i, now) < t.delay(r, j, now)
}

// delay returns how long one connection more would take, in ns, if the backend at a position accepted one after the
// other.
func (t *terms) delay(r ring, i int, now int64) float64 {
	inFlight := float64(int64(t.inFlight(r, i)))
	if t.inverse != nil {
		inFlight /= even
	}
	return (noise + r[i].answersIn(now)) * (inFlight + 1)
}

// observe keeps the mean, as a float32 of ns, beside the time at which it was that.
func (b *backend) observe(took, now int64) {
	for {
		was := b.latency.Load()
		mean, ticks := float64(max(1, took)), age(was, now)
		if left := fade(uint32(was>>32), ticks); mean < left {
			mean = left + mean*(1-fade(math.Float32bits(1), ticks))
		}
		next := uint64(math.Float32bits(float32(mean)))<<32 | uint64(tick(now))
		if b.latency.CompareAndSwap(was, next) {
			return
		}
	}
}

// answersIn returns how long the backend is to take, in ns; 0: nothing is known.
func (b *backend) answersIn(now int64) float64 {
	latency := b.latency.Load()
	return fade(uint32(latency>>32), age(latency, now))
}

// age returns for how long a mean has not changed, in ticks. Another loop may have measured a moment later.
func age(latency uint64, now int64) uint64 {
	if uint32(latency)-tick(now) < 1<<16 {
		return 0
	}
	return uint64(tick(now) - uint32(latency))
}

func tick(now int64) uint32 { return uint32(now >> latencyTick) }

// fade returns what is left of a float32 after some ticks. The bits of a float grow as its logarithm, nearly: so
// halving is subtraction of one from the exponent, and what is between is on straight lines, within 6 % of the curve.
func fade(bits uint32, ticks uint64) float64 {
	const exponent = 1 << 23
	fades := ticks * (exponent << latencyTick / halfLife)
	if fades >= uint64(bits) {
		return 0
	}
	return float64(math.Float32frombits(bits - uint32(fades)))
}
