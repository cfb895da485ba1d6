package balancer

import (
	"math"
	"sync/atomic"

	"github.com/sluice-lb/sluice/lb"
)

// floors are what no backend of a set has less of in flight than, by weight, as far as is known: so a pick ends at the
// first that has no more, instead of looking at all. A pick that finds all above raises the floor to the least that it
// has seen. A connection that ends lowers it; one that has ended before the floor was raised, and did not see that, is
// seen by a second look. So they hold at any moment without a lock, and a pick is exact.
type floors [lb.Sets]atomic.Uint64

// fullBurden is what one connection weighs at a backend of weight 1: 2^20 of them do not overflow, and at the greatest
// weight there are more than 15 bits.
const fullBurden = 1 << 31

// weighs notes what a connection weighs at a backend, whose weight is 0 where all are equal.
func (b *backend) weighs(weight uint32) {
	if weight == 0 {
		b.burden.Store(0)
		return
	}
	b.burden.Store(max(1, fullBurden/weight))
}

// load returns what is in flight by weight.
func (b *backend) load() uint64 { return b.inFlight() * uint64(b.burden.Load()) }

// lower makes one no more than n.
func lower(floor *atomic.Uint64, n uint64) {
	for {
		was := floor.Load()
		if was <= n || floor.CompareAndSwap(was, n) {
			return
		}
	}
}

// relieved notes that a backend with some conditions has so many connections, one less than before.
func (s *state) relieved(b *backend, condition uint32, inFlight uint64) {
	f := s.floors.Load()
	if f == nil {
		return // it goes by something else since
	}
	if burden := uint64(b.burden.Load()); burden != 0 {
		inFlight *= burden
	}
	for in := range lb.Sets {
		if condition&conditionOf(in) != 0 {
			lower(&f[in], inFlight)
		}
	}
}

// fewest returns where in a ring the fewest connections are in flight by weight: the first such place from start on.
func (t *terms) fewest(r ring, start int) int {
	floor := t.floor.Load()
	if !t.burdened && r[start].inFlight() <= floor || t.burdened && r[start].load() <= floor {
		return start
	}
	at, least := t.from(r, start, floor)
	if at >= 0 {
		return at
	}
	if t.floor.CompareAndSwap(floor, least) {
		if _, now := t.from(r, 0, 0); now < least {
			lower(t.floor, now)
		}
	}
	if at, _ = t.from(r, start, least); at >= 0 {
		return at
	}
	return start // all have more by now
}

// from returns the first place from start on where no more than most is in flight. Negative: there is none, and least
// is what there is.
func (t *terms) from(r ring, start int, most uint64) (at int, least uint64) {
	at, least = t.first(r[start:], most)
	if at >= 0 {
		return start + at, 0
	}
	at, before := t.first(r[:start], most)
	return at, min(least, before)
}

// first does so in a part of a ring.
func (t *terms) first(r ring, most uint64) (at int, least uint64) {
	if t.burdened {
		return r.firstByWeight(most)
	}
	return r.first(most)
}

// first is that of backends with equal weights. Eight at a time take half as long as one after the other, as none waits
// for the result of another.
func (r ring) first(most uint64) (at int, least uint64) {
	least = math.MaxUint64
	i := 0
	for ; len(r)-i >= 8; i += 8 {
		k := (*[8]*backend)(r[i:])
		a := min(k[0].counter.Load(), k[1].counter.Load())
		b := min(k[2].counter.Load(), k[3].counter.Load())
		c := min(k[4].counter.Load(), k[5].counter.Load())
		d := min(k[6].counter.Load(), k[7].counter.Load())
		m := min(a, b, c, d) >> inFlightAt
		for j := 0; m <= most && j < len(k); j++ {
			if k[j].inFlight() <= most {
				return i + j, 0
			}
		}
		least = min(least, m)
	}
	for ; i < len(r); i++ {
		m := r[i].inFlight()
		if m <= most {
			return i, 0
		}
		least = min(least, m)
	}
	return -1, least
}

// firstByWeight is that of others.
func (r ring) firstByWeight(most uint64) (at int, least uint64) {
	least = math.MaxUint64
	i := 0
	for ; len(r)-i >= 8; i += 8 {
		k := (*[8]*backend)(r[i:])
		a := min(k[0].load(), k[1].load())
		b := min(k[2].load(), k[3].load())
		c := min(k[4].load(), k[5].load())
		d := min(k[6].load(), k[7].load())
		m := min(a, b, c, d)
		for j := 0; m <= most && j < len(k); j++ {
			if k[j].load() <= most {
				return i + j, 0
			}
		}
		least = min(least, m)
	}
	for ; i < len(r); i++ {
		m := r[i].load()
		if m <= most {
			return i, 0
		}
		least = min(least, m)
	}
	return -1, least
}

// inFlight returns what is in flight at a position, and how heavy that is for it.
func (t *terms) inFlight(r ring, i int) uint64 {
	if t.inverse == nil {
		return r[i].inFlight()
	}
	return r[i].inFlight() * t.inverse[i]
}
