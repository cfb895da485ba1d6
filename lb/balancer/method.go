package balancer

import (
	"math/bits"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/sluice-lb/sluice/lb"
)

// method is how a service chooses that does so otherwise than in equal turns. It is immutable.
type method struct {
	algorithm lb.Algorithm
	port      bool   // of the client, which a hash is of, too
	salt      uint64 // of hashes: the same on every node
	sets      [lb.Sets]terms
}

// terms are what a method goes by in a set. Backends are known by their positions in the ring.
type terms struct {
	turns   []uint32 // a round by weights; nil: all are equal
	inverse []uint64 // the mean weight by that of each, times even; nil: all are equal
	table   []uint32 // what a hash is the position in; nil: not needed

	floor    *atomic.Uint64 // of least connections (floors)
	burdened bool           // that is by weights
}

// chances reports whether chance decides.
func (m *method) chances() bool {
	return m.algorithm == lb.TwoChoices || m.algorithm == lb.PeakEWMA || m.algorithm == lb.Random
}

const even = 1 << 16 // what terms.inverse has for the mean weight

// methodOf returns how a service with a scheduler is to choose, whose rings are made. Nil: in equal turns.
func methodOf(s *lb.Service, scheduler lb.Scheduler, to *service) *method {
	algorithm := scheduler.Algorithm
	weighted := s.Weighted()
	if algorithm == lb.RoundRobin && !weighted {
		return nil
	}
	var weights map[*backend]uint32
	if weighted {
		weights = make(map[*backend]uint32, len(s.Backends))
		for i, k := range to.backends {
			weights[k] = weightOf(&s.Backends[i])
		}
	}
	m := &method{algorithm: algorithm, port: scheduler.Port, salt: hashID(s.ID, 0)}
	known := new(floors) // anew, as others are in the rings
	for in, r := range to.rings {
		t := &m.sets[in]
		t.weigh(r, weights)
		if algorithm == lb.LeastConnections {
			t.floor, t.burdened = &known[in], weighted
		}
		if m.algorithm.Hashes() {
			t.table = byAddress(r, weights)
		}
		if m.algorithm == lb.Maglev {
			t.table = maglevTable(r, t.table, m.salt)
		}
	}
	if algorithm == lb.LeastConnections {
		for _, k := range to.backends { // before the floors, which are counted so
			k.weighs(weights[k])
		}
		to.state.floors.Store(known)
	}
	return m
}

// next advances and returns a backend of a set for f, one that it has not tried unless it has tried all.
func (s *service) next(from lb.Set, f *Flow) *backend {
	at := &s.state.positions[from]
	f.because(s.reasonFor(f))
	switch {
	case s.method != nil && s.method.algorithm.Hashes():
		return s.hashed(from, f)
	case f.Tried.none():
		return s.slowly(from, f, s.choose(from, f, at.first.Add(1)-1))
	}
	return s.retry(from, f, at.retry.Add(1)-1)
}

// peek returns what next would return.
func (s *service) peek(from lb.Set, f *Flow) *backend {
	at := &s.state.positions[from]
	switch {
	case s.method != nil && s.method.algorithm.Hashes():
		return s.hashed(from, f)
	case f.Tried.none():
		return s.choose(from, f, at.first.Load())
	}
	return s.retry(from, f, at.retry.Load())
}

// choose returns the backend for a first attempt, whose turn is at position.
func (s *service) choose(from lb.Set, f *Flow, position uint64) *backend {
	r, m := s.rings[from], s.method
	if m == nil {
		return r.at(position)
	}
	t := &m.sets[from]
	switch m.algorithm {
	case lb.LeastConnections:
		return r[t.fewest(r, t.turn(r, position))]
	case lb.Random:
		return r[t.at(below(s.chance(position), t.round(r)))]
	case lb.TwoChoices, lb.PeakEWMA:
		one, other := t.two(r, s.chance(position))
		if m.algorithm == lb.PeakEWMA && t.sooner(r, other, one, f.Now) ||
			m.algorithm == lb.TwoChoices && t.inFlight(r, other) < t.inFlight(r, one) {
			return r[other]
		}
		return r[one]
	}
	return r[t.turn(r, position)]
}

// chance returns the random number of a turn, as SplitMix64 does: each node has others, and the same ones again if it
// goes on from the same position.
func (s *service) chance(position uint64) uint64 { return mix(s.state.hash ^ mix(position)) }

// turn returns whose turn it is at a position.
func (t *terms) turn(r ring, position uint64) int { return t.at(position % t.round(r)) }

// at returns whose turn it is at a position in the round.
func (t *terms) at(position uint64) int {
	if t.turns == nil {
		return int(position)
	}
	return int(t.turns[position])
}

// round returns how many turns a round has.
func (t *terms) round(r ring) uint64 {
	if t.turns == nil {
		return uint64(len(r))
	}
	return uint64(len(t.turns))
}

// terms returns what s goes by in a set.
func (s *service) terms(in lb.Set) *terms {
	if s.method == nil {
		return &evenTerms
	}
	return &s.method.sets[in]
}

// evenTerms are those of equal turns.
var evenTerms terms

// two returns two different backends, if there are two: one by weight, the other any.
func (t *terms) two(r ring, chance uint64) (one, other int) {
	one = t.at(below(chance, t.round(r)))
	if len(r) == 1 {
		return one, one
	}
	other = int(below(mix(chance), uint64(len(r)-1)))
	if other >= one {
		other++
	}
	return one, other
}

// below makes a random number one below n, with a bias of n in 2^64 (Lemire: Fast Random Integer Generation in an
// Interval, ACM TOMACS 2019).
func below(chance, n uint64) uint64 {
	hi, _ := bits.Mul64(chance, n)
	return hi
}

// cost returns what a backend is to have least of: connections, or delay. To other methods all are alike.
func (s *service) cost(from lb.Set, i int, now int64) float64 {
	if s.method == nil {
		return 0
	}
	r, t := s.rings[from], &s.method.sets[from]
	switch s.method.algorithm {
	case lb.LeastConnections, lb.TwoChoices:
		return float64(t.inFlight(r, i))
	case lb.PeakEWMA:
		return t.delay(r, i, now)
	}
	return 0
}

// retry returns the backend for another attempt, whose turn is at position.
func (s *service) retry(from lb.Set, f *Flow, position uint64) *backend {
	if k := s.another(from, f, position, false); k != nil {
		return k
	}
	return s.rings[from].at(position) // all were tried
}

// another returns the one of least cost among the untried, in turns among equals; settled: of those that do not start
// slowly. Nil: there is none. It takes time linear in the ring, after a failed attempt and while backends start.
func (s *service) another(from lb.Set, f *Flow, position uint64, settled bool) *backend {
	r := s.rings[from]
	out := func(k *backend) bool { return f.Tried.has(k) || settled && k.starts() != nil }
	left := uint64(0)
	for _, k := range r {
		if !out(k) {
			left++
		}
	}
	if left == 0 {
		return nil
	}
	var best *backend
	var least float64
	var soonest uint64
	wait := left - position%left // turns until the first of them
	for i, k := range r {
		if out(k) {
			continue
		}
		cost, turn := s.cost(from, i, f.Now), wait%left
		if best == nil || cost < least || cost == least && turn < soonest {
			best, least, soonest = k, cost, turn
		}
		wait++
	}
	return best
}

// hashed returns the backend that the client's hash leads to, or the next one after that which f has not tried.
func (s *service) hashed(from lb.Set, f *Flow) *backend {
	r, table := s.rings[from], s.method.sets[from].table
	first := s.method.hash(f) % uint64(len(table))
	if f.Tried.none() {
		return r[table[first]]
	}
	for i := range table {
		if k := r[table[(first+uint64(i))%uint64(len(table))]]; !f.Tried.has(k) {
			return k
		}
	}
	return r[table[first]]
}

// hash returns that of the client of f.
func (m *method) hash(f *Flow) uint64 {
	if !m.port {
		hi, lo := split(plain(f.Client))
		return mix(mix(m.salt^hi) ^ lo)
	}
	return hashAddr(m.salt, netip.AddrPortFrom(plain(f.Client), f.ClientPort))
}

// byAddress returns the positions in the ring of its backends ordered by address, which is the same on every node,
// each as often as its weight says.
func byAddress(r ring, weights map[*backend]uint32) []uint32 {
	order := make([]uint32, len(r))
	for i := range order {
		order[i] = uint32(i)
	}
	slices.SortFunc(order, func(i, j uint32) int { return r[i].addr.Compare(r[j].addr) })
	of := make([]uint32, len(r))
	for i, at := range order {
		of[i] = weights[r[at]]
	}
	if alike(of) {
		return order
	}
	all := turns(of, min(mostTurns(len(r)), primes[len(primes)-1]/2)) // all have a place in Maglev's table
	for i, nth := range all {
		all[i] = order[nth]
	}
	return all
}

// reasonFor returns why next chooses as it does.
func (s *service) reasonFor(f *Flow) lb.Why {
	switch {
	case !f.Tried.none():
		return lb.ByRetry
	case s.method == nil:
		return lb.ByAlgorithm(lb.RoundRobin)
	}
	return lb.ByAlgorithm(s.method.algorithm)
}
