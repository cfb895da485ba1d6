package stats

import (
	"math"
	"math/bits"
	"time"
)

const (
	// exact durations are below 2^exactBits ns, and each later power of two has half
	// as many buckets, so that a bucket is at most 1/64 of its value wide.
	exactBits = 7
	exact     = 1 << exactBits
	perPower  = exact / 2
	buckets   = exact + (63-exactBits)*perPower
)

// Histogram counts durations, in constant memory and without allocating. The zero
// value is empty. It is not safe for concurrent use.
type Histogram struct {
	counts   [buckets]uint64
	total    uint64
	greatest time.Duration
}

// Record counts one duration. A negative one counts as 0.
func (h *Histogram) Record(d time.Duration) {
	d = max(d, 0)
	h.counts[bucket(uint64(d))]++
	h.total++
	h.greatest = max(h.greatest, d)
}

// Count returns how many durations were recorded.
func (h *Histogram) Count() uint64 { return h.total }

// Max returns the greatest recorded duration, exactly; 0 if there is none.
func (h *Histogram) Max() time.Duration { return h.greatest }

// Quantile returns the duration that the share q of the recorded ones does not exceed,
// at most 1/64 too long; 0 if there is none. q is from 0 to 1.
func (h *Histogram) Quantile(q float64) time.Duration {
	if h.total == 0 {
		return 0
	}
	rank := max(uint64(math.Ceil(q*float64(h.total))), 1)
	seen := uint64(0)
	for i, n := range h.counts {
		if seen += n; seen >= rank {
			return min(time.Duration(last(i)), h.greatest)
		}
	}
	return h.greatest
}

// bucket returns the index of the bucket of v, which is below 2^63.
func bucket(v uint64) int {
	if v < exact {
		return int(v)
	}
	shift := bits.Len64(v) - exactBits
	return exact + (shift-1)*perPower + int(v>>shift) - perPower
}

// last returns the greatest value of a bucket.
func last(i int) uint64 {
	if i < exact {
		return uint64(i)
	}
	shift := (i-exact)/perPower + 1
	top := uint64((i-exact)%perPower + perPower)
	return (top+1)<<shift - 1
}
