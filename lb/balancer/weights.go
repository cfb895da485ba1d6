package balancer

import "github.com/sluice-lb/sluice/lb"

// weightOf returns the part of new connections that b is to have, beside those of others.
func weightOf(b *lb.Backend) uint32 { return max(1, uint32(b.Weight)) }

// alike reports whether all weights are the same.
func alike(weights []uint32) bool {
	for _, w := range weights {
		if w != weights[0] {
			return false
		}
	}
	return true
}

// weigh sets what the weights of the backends come to, if they are not all the same. nil is the same for all.
func (t *terms) weigh(r ring, weights map[*backend]uint32) {
	if weights == nil {
		return
	}
	of := make([]uint32, len(r))
	sum := uint64(0)
	for i, k := range r {
		of[i] = weights[k]
		sum += uint64(of[i])
	}
	if alike(of) {
		return
	}
	t.turns, t.inverse = turns(of, mostTurns(len(r))), make([]uint64, len(r))
	for i, w := range of {
		t.inverse[i] = max(1, sum*even/uint64(len(r))/uint64(w))
	}
}

// A round has at most this many turns for each backend, or in all if that is more. If the weights need more to be
// exact, they are rounded.
const turnsEach, turnsAll = 64, 4096

func mostTurns(backends int) uint64 { return uint64(max(turnsAll, turnsEach*backends)) }

// turns returns a round in which each position i has weights[i] turns, or as many as are in that proportion. The turns
// of each are spread evenly over the round, and where they begin differs by the golden ratio, so that those of
// many small weights do not come at the same time.
func turns(weights []uint32, most uint64) []uint32 {
	divisor, total := uint32(0), uint64(0)
	for _, w := range weights {
		divisor = gcd(divisor, w)
	}
	each := make([]uint64, len(weights))
	for i, w := range weights {
		each[i] = uint64(w / divisor)
		total += each[i]
	}
	if total > most {
		all := total
		total = 0
		for i := range each {
			each[i] = max(1, (each[i]*most+all/2)/all)
			total += each[i]
		}
	}
	// Sorted by counting: slot is where the k-th turn of i would be if nothing else were there.
	slot := func(i int, k uint64) uint64 {
		const golden = 2654435769 // 2^32 by the golden ratio
		phase := uint64(uint32(i) * golden)
		return (k<<32 + phase) / each[i] * total >> 32
	}
	starts := make([]uint32, total+1)
	for i, n := range each {
		for k := range n {
			starts[slot(i, k)+1]++
		}
	}
	for i := range total {
		starts[i+1] += starts[i]
	}
	round := make([]uint32, total)
	for i, n := range each {
		for k := range n {
			at := slot(i, k)
			round[starts[at]] = uint32(i)
			starts[at]++
		}
	}
	return round
}

func gcd(a, b uint32) uint32 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
