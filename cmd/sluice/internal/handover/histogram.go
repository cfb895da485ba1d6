package handover

import (
	"sync/atomic"
	"time"
)

// Bounds are the upper ends of the buckets of a Histogram; the last one has none.
var Bounds = [...]time.Duration{
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2500 * time.Millisecond, 5 * time.Second,
}

// Histogram counts for how long connections have stood still. The zero value is empty.
// All methods may be called by any goroutine.
type Histogram struct {
	buckets [len(Bounds) + 1]atomic.Uint64
	sum     atomic.Int64 // ns
	most    atomic.Int64 // ns
}

// Observe counts one.
func (h *Histogram) Observe(d time.Duration) {
	i := 0
	for i < len(Bounds) && d > Bounds[i] {
		i++
	}
	h.buckets[i].Add(1)
	h.sum.Add(int64(d))
	for most := h.most.Load(); int64(d) > most && !h.most.CompareAndSwap(most, int64(d)); most = h.most.Load() {
	}
}

// Snapshot returns how many there are, their sum and, by upper bound in seconds, how
// many were at most so long.
func (h *Histogram) Snapshot() (count uint64, sum time.Duration, below map[float64]uint64) {
	below = make(map[float64]uint64, len(Bounds))
	for i := range h.buckets {
		count += h.buckets[i].Load()
		if i < len(Bounds) {
			below[Bounds[i].Seconds()] = count
		}
	}
	return count, time.Duration(h.sum.Load()), below
}

// Quantile returns the upper end of the bucket that a quantile falls into, or the
// longest if that is shorter or it has none.
func (h *Histogram) Quantile(q float64) time.Duration {
	count, _, below := h.Snapshot()
	longest := time.Duration(h.most.Load())
	for _, bound := range Bounds {
		if float64(below[bound.Seconds()]) >= q*float64(count) {
			return min(bound, longest)
		}
	}
	return longest
}
