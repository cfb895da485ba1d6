package lb

import "math"

// fewest returns where in a ring the fewest connections are in flight by weight: the first such place from start on.
func (t *terms) fewest(r ring, start int) int {
	if r[start].inFlight() == 0 {
		return start
	}
	least := t.least(r)
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

// inFlight returns what is in flight at a position, and how heavy that is for it.
func (t *terms) inFlight(r ring, i int) uint64 {
	if t.inverse == nil {
		return r[i].inFlight()
	}
	return r[i].inFlight() * t.inverse[i]
}

// least returns the least of that. Four at a time take half as long as one after the other, as none waits for the
// result of another.
func (t *terms) least(r ring) uint64 {
	var a, b, c, d uint64 = math.MaxUint64, math.MaxUint64, math.MaxUint64, math.MaxUint64
	if t.inverse != nil {
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
	for ; len(r) >= 8; r = r[8:] {
		k := (*[8]*backend)(r)
		a = min(a, k[0].counter.Load())
		b = min(b, k[1].counter.Load())
		c = min(c, k[2].counter.Load())
		d = min(d, k[3].counter.Load())
		a = min(a, k[4].counter.Load())
		b = min(b, k[5].counter.Load())
		c = min(c, k[6].counter.Load())
		d = min(d, k[7].counter.Load())
	}
	for _, k := range r {
		a = min(a, k.counter.Load())
	}
	return min(a, b, c, d) >> inFlightAt // where these are the same the picks make no difference
}
