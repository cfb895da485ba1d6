package lb

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
	"sync/atomic"
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

// next advances and returns a backend, one that is not in tried unless all are.
func (r ring) next(at *positions, tried *Tried) *backend {
	if tried.none() {
		return r.at(at.first.Add(1) - 1)
	}
	return r.another(at.retry.Add(1)-1, tried)
}

// peek returns what next would return.
func (r ring) peek(at *positions, tried *Tried) *backend {
	if tried.none() {
		return r.at(at.first.Load())
	}
	return r.another(at.retry.Load(), tried)
}

// another returns the backend at a position among the untried, or among all if all
// were tried. It takes time linear in the ring, after a failed attempt only.
func (r ring) another(position uint64, tried *Tried) *backend {
	left := uint64(0)
	for _, b := range r {
		if !tried.has(b) {
			left++
		}
	}
	if left == 0 {
		return r.at(position)
	}
	nth := position % left
	for _, b := range r {
		if tried.has(b) {
			continue
		}
		if nth == 0 {
			return b
		}
		nth--
	}
	return r.at(position) // not reached: left of them are untried
}

// resume returns the position at which ring next goes on with the round that r is in
// at position: at the same backend, or the one after it in order if that one has left.
func (r ring) resume(position uint64, next ring) uint64 {
	if len(r) == 0 || len(next) == 0 {
		return position
	}
	due := r.at(position)
	i, _ := slices.BinarySearchFunc(next, due, (*backend).compare)
	return uint64(i % len(next))
}

// hash returns a value that shuffles the services: the base for the order of the
// backends of id, and for who of them comes first.
func (id ID) hash(seed uint64) uint64 {
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
