package balancer

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/sluice-lb/sluice/lb"
)

// ring is the round robin order of eligible backends, sorted by a hash of seed, service and
// address. So it needs no memory: backends that survive a change keep their order.
type ring []*backend

func (r ring) sort() {
	slices.SortFunc(r, (*backend).compare)
}

// compare orders backends in a ring.
func (b *backend) compare(o *backend) int {
	return cmp.Or(cmp.Compare(b.order, o.order), b.addr.Compare(o.addr))
}

// at returns the backend at a position.
func (r ring) at(position uint64) *backend { return r[position%uint64(len(r))] }

// positions are those in a ring: of first attempts, and apart from them of retries. A
// retry in the order of first attempts would leave two backends of which one is dead in step:
// every first attempt would find the dead one. One at the neighbour would give it
// all the load of the dead one.
type positions struct{ first, retry atomic.Uint64 }

// resume returns the position at which a service that s becomes goes on with the round that s is in at position: at the
// same backend, or the one after it in order if that one has left. Chance goes on by itself: it would repeat itself
// from the beginning of a round.
func (s *service) resume(in lb.Set, position uint64, next *service) uint64 {
	r, to := s.rings[in], next.rings[in]
	if len(r) == 0 || len(to) == 0 || next.method != nil && next.method.chances() {
		return position
	}
	was, is := s.terms(in), next.terms(in)
	due := r[was.turn(r, position)]
	if was.turns == nil && is.turns == nil {
		i, _ := slices.BinarySearchFunc(to, due, (*backend).compare)
		return uint64(i % len(to))
	}
	round := is.round(to)
	n := was.round(r)
	first := position % n * round / n // as much of the round has passed
	for i := range round {
		if to[is.turn(to, first+i)] == due {
			return (first + i) % round
		}
	}
	return first
}

// hashID returns a value that shuffles the services: the base for the order of the
// backends of id, and for who of them comes first.
func hashID(id lb.ID, seed uint64) uint64 {
	// FNV-1a, http://www.isthe.com/chongo/tech/comp/fnv/.
	const offset, prime = 0xcbf29ce484222325, 0x100000001b3
	h := mix(seed ^ offset)
	for _, s := range [...]string{id.Namespace, id.Name, id.Port} {
		for i := range len(s) {
			h = (h ^ uint64(s[i])) * prime
		}
		h = (h ^ 0xff) * prime // so that "a", "bc" is not "ab", "c"
	}
	h = (h ^ uint64(id.Protocol)) * prime
	if id.IPv6 {
		h = ^h
	}
	return mix(h)
}

// hashAddr returns the position of a in the ring of the service whose hash is
// base.
func hashAddr(base uint64, a netip.AddrPort) uint64 {
	hi, lo := split(a.Addr())
	return mix(mix(mix(base^hi)^lo) ^ uint64(a.Port()))
}

// mix is the finaliser of SplitMix64 (Steele, Lea, Flood: Fast Splittable
// Pseudorandom Number Generators, OOPSLA 2014): every bit of x affects every bit
// of the result, and no two x give the same.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// split returns a as a number of 128 bits; IPv4 as its mapped form.
func split(a netip.Addr) (hi, lo uint64) {
	b := a.As16()
	return binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
}
