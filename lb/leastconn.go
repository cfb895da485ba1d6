package lb

import (
	"math"
	"sync/atomic"
)

// floors are what no backend of a set has fewer connections than, as far as is known: so a pick ends at the first that
// has no more, instead of looking at all. They are for equal weights. A pick that finds all above raises the floor to
// the least that it has seen. A connection that ends lowers it; one that has ended before the floor was raised, and did
// not see that, is seen by a second look. So they hold at any moment without a lock, and a pick is exact.
type floors [sets]atomic.Uint64

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
func (s *state) relieved(condition uint32, inFlight uint64) {
	f := s.floors.Load()
	if f == nil {
		return // it goes by something else since
	}
	for in := range sets {
		if condition&in.condition() != 0 {
			lower(&f[in], inFlight)
		}
	}
}

// fewest returns where in a ring the fewest connections are in flight by weight: the first such place from start on.
func (t *terms) fewest(r ring, start int) int {
	if t.floor == nil {
		if r[start].inFlight() == 0 {
			return start
		}
		return t.fewestByWeight(r, start, t.leastByWeight(r))
	}
	floor := t.floor.Load()
	if r[start].inFlight() <= floor {
		return start
	}
	at, least := r.from(start, floor)
	if at >= 0 {
		return at
	}
	if t.floor.CompareAndSwap(floor, least) {
		if _, now := r.from(0, 0); now < least {
			lower(t.floor, now)
		}
	}
	if at, _ = r.from(start, least); at >= 0 {
		return at
	}
	return start // all have more by now
}

// from returns the first place from start on where at most so many connections are in flight. Negative: there is none,
// and least is what there is.
func (r ring) from(start int, most uint64) (at int, least uint64) {
	at, least = r[start:].first(most)
	if at >= 0 {
		return start + at, 0
	}
	at, before := r[:start].first(most)
	return at, min(least, before)
}

// first does so in a part of a ring. Eight at a time take half as long as one after the other, as none waits for the
// result of another.
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

// inFlight returns what is in flight at a position, and how heavy that is for it.
func (t *terms) inFlight(r ring, i int) uint64 {
	if t.inverse == nil {
		return r[i].inFlight()
	}
	return r[i].inFlight() * t.inverse[i]
}

// fewestByWeight returns the first place from start on with the least.
func (t *terms) fewestByWeight(r ring, start int, least uint64) int {
	for i := start; ; {
		if t.inFlight(r, i) <= least {
			return i
		}
		if i++; i == len(r) {
			i = 0
		}
		if i == start {
			return start // all have more by now
		}
	}
}

// leastByWeight returns the least of what is in flight by weight, four at a time.
func (t *terms) leastByWeight(r ring) uint64 {
	var a, b, c, d uint64 = math.MaxUint64, math.MaxUint64, math.MaxUint64, math.MaxUint64
	w := t.inverse
	for ; len(r) >= 4 && len(w) >= 4; r, w = r[4:], w[4:] {
		k, w := (*[4]*backend)(r), (*[4]uint64)(w)
		a = min(a, k[0].inFlight()*w[0])
		b = min(b, k[1].inFlight()*w[1])
		c = min(c, k[2].inFlight()*w[2])
		d = min(d, k[3].inFlight()*w[3])
	}
	for i, k := range r {
		a = min(a, k.inFlight()*w[i])
	}
	return min(a, b, c, d)
}
