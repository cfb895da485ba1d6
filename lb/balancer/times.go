package balancer

import (
	"math"
	"sync"
	"sync/atomic"

	"github.com/sluice-lb/sluice/lb"
)

// Measure is what is measured of each connection.
type Measure uint8

// The measures. All begin when the client was accepted.
const (
	ConnectTime   Measure = iota // until an endpoint had accepted, without waits for one
	FirstByteTime                // until the endpoint had sent something
	Duration                     // until the end
	Measures
)

// Buckets of a Histogram. They are those of Prometheus' native histograms of schema 2: each bound is 2^(1/4) times the
// one before, so that a quantile is at most 9 % off.
const (
	BucketsPerDoubling = 4
	leastDoubling      = -17 // 2^-17 s is 8 us; what takes less is in the first bucket
	mostDoubling       = 20  // 2^20 s are 12 days; what takes longer is in the last bucket

	// FirstBucket is the index of the first bucket in the schema: the one with the upper bound 2^(FirstBucket/4) s.
	FirstBucket = leastDoubling * BucketsPerDoubling

	buckets = (mostDoubling-leastDoubling)*BucketsPerDoubling + 2
)

// Histogram has how many times there were, by bucket, and their sum in ns.
type Histogram struct {
	Buckets [buckets]uint64
	Sum     uint64
}

// Times are histograms of all measures.
type Times [Measures]Histogram

// LoopTimes count for one loop, so that none writes to a cache line of another's: it takes whole ones, since it has a
// page of the allocator's size classes for itself. nil counts nothing.
type LoopTimes [Measures]struct {
	buckets [buckets]atomic.Uint64
	sum     atomic.Uint64
}

// Observe counts a time in ns.
func (t *LoopTimes) Observe(m Measure, ns int64) {
	if t == nil {
		return
	}
	ns = max(ns, 0)
	h := &t[m]
	h.buckets[bucket(ns)].Add(1)
	h.sum.Add(uint64(ns))
}

// bounds are the parts of a doubling.
var bounds = [BucketsPerDoubling - 1]float64{math.Exp2(0.25), math.Exp2(0.5), math.Exp2(0.75)}

// bucket returns the position of that with a time in ns, whose upper bound it may reach.
func bucket(ns int64) int {
	part, doubling := math.Frexp(float64(ns) / 1e9)
	part, doubling = 2*part, doubling-1 // in [1, 2)
	i := (doubling - leastDoubling) * BucketsPerDoubling
	if part > 1 {
		i++
	}
	for _, b := range bounds {
		if part > b {
			i++
		}
	}
	if ns == 0 {
		return 0
	}
	return min(max(i, 0), buckets-1)
}

// Add adds what another has counted.
func (t *Times) Add(o *Times) {
	for m := range t {
		for i, n := range o[m].Buckets {
			t[m].Buckets[i] += n
		}
		t[m].Sum += o[m].Sum
	}
}

func (t *Times) addLoop(o *LoopTimes) {
	for m := range t {
		for i := range o[m].buckets {
			t[m].Buckets[i] += o[m].buckets[i].Load()
		}
		t[m].Sum += o[m].sum.Load()
	}
}

// timed has the times of a service port, or of all that have none of their own. The zero timed counts nothing.
type timed struct {
	loops  []atomic.Pointer[LoopTimes]
	before *Times // what another Balancer has counted; guarded by times.mu
}

func newTimed(loops int) *timed { return &timed{loops: make([]atomic.Pointer[LoopTimes], loops)} }

// loop returns what counts for a loop, which is made at first.
func (t *timed) loop(i int) *LoopTimes {
	if i >= len(t.loops) {
		return nil
	}
	of := t.loops[i].Load()
	if of == nil {
		t.loops[i].CompareAndSwap(nil, new(LoopTimes))
		of = t.loops[i].Load()
	}
	return of
}

// sum returns what was counted in all; nil: nothing. The caller holds times.mu.
func (t *timed) sum() (all *Times) {
	if t.before != nil {
		all = new(Times)
		*all = *t.before
	}
	for i := range t.loops {
		if of := t.loops[i].Load(); of != nil {
			if all == nil {
				all = new(Times)
			}
			all.addLoop(of)
		}
	}
	return all
}

// times are who has times of its own.
type times struct {
	mu     sync.Mutex       // taken once for each service port, and by who looks
	own    int              // service ports
	others *timed           // nil until there is one without
	before map[lb.ID]*Times // what another Balancer has counted of those without
}

// gone is of service ports that are no longer in the table.
var gone timed

// Times returns what counts, for one of Balancer.Loops, the times of connections as that of a: of its service port or,
// if Balancer.Timed have their own already, of all others together. It allocates for the first connection on a loop.
// It is nil for the zero Admission, and for other loops.
func (a Admission) Times(loop int) *LoopTimes {
	if a.of == nil {
		return nil
	}
	t := a.of.times.Load()
	if t == nil {
		t = a.of.balancer.Counters().time(a.of)
	}
	return t.loop(loop)
}

// time gives s times.
func (cs Counters) time(s *state) *timed {
	cs.b.times.mu.Lock()
	defer cs.b.times.mu.Unlock()
	if t := s.times.Load(); t != nil {
		return t
	}
	t := cs.b.times.others
	switch {
	case cs.b.times.own < cs.b.Timed:
		cs.b.times.own++
		t = newTimed(cs.b.Loops)
	case t == nil:
		t = newTimed(cs.b.Loops)
		cs.b.times.others = t
	}
	s.times.Store(t)
	return t
}

// untime lets another service port have times of its own instead of s, which has left the table.
func (cs Counters) untime(s *state) {
	cs.b.times.mu.Lock()
	defer cs.b.times.mu.Unlock()
	if t := s.times.Swap(&gone); t != nil && t != cs.b.times.others && t != &gone {
		cs.b.times.own--
	}
}

// Times passes the times of each service port that has its own to visit, and last those of all others together, with
// the zero ID. Where nothing was counted nothing is passed.
func (cs Counters) Times(visit func(lb.ID, *Times)) {
	cs.b.mu.Lock()
	defer cs.b.mu.Unlock()
	cs.b.times.mu.Lock()
	defer cs.b.times.mu.Unlock()
	snap := cs.b.load()
	for _, slot := range snap.table.Slots() {
		s := snap.service(slot).state
		if t := s.times.Load(); t != nil && t != cs.b.times.others {
			if all := t.sum(); all != nil {
				visit(s.id, all)
			}
		}
	}
	var rest *Times
	if cs.b.times.others != nil {
		rest = cs.b.times.others.sum()
	}
	for _, before := range cs.b.times.before {
		if rest == nil {
			rest = new(Times)
		}
		rest.Add(before)
	}
	if rest != nil {
		visit(lb.ID{}, rest)
	}
}

// RememberTimes goes on with what another Balancer has passed to the visit of Times. As Remember it may be called again
// with what came since.
func (ms Memory) RememberTimes(id lb.ID, all *Times) {
	ms.b.mu.Lock()
	defer ms.b.mu.Unlock()
	var t *timed
	if s := ms.b.service(id); s != nil {
		if t = s.state.times.Load(); t == nil {
			t = ms.b.Counters().time(s.state)
		}
	}
	ms.b.times.mu.Lock()
	defer ms.b.times.mu.Unlock()
	if t != nil && t != ms.b.times.others {
		t.before = all
		return
	}
	if ms.b.times.before == nil {
		ms.b.times.before = make(map[lb.ID]*Times)
	}
	ms.b.times.before[id] = all
}
