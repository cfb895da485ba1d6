package queue

import (
	"hash/maphash"
	"sync/atomic"
)

// Of connections that were answered, and of which it does not matter when they end, a packet may come that conntrack
// does not know, when it has forgotten the connection: it is to go where the connection did. That is kept without a
// lock and without a list, as far as there is room.

// manyAnswering is how many connections are known so, in 256 KiB. One takes the place of another.
const manyAnswering = 1 << 15

// answering has the numbers of the endpoints of connections, each with 32 bits of a hash.
type answering [manyAnswering]atomic.Uint64

func (a *answering) at(k *flowKey) (place *atomic.Uint64, what uint64) {
	h := maphash.Comparable(flowSeed, *k)
	return &a[h%manyAnswering], h >> 32 << 32
}

func (a *answering) add(k *flowKey, number uint32) {
	place, what := a.at(k)
	place.Store(what | uint64(number))
}

// forget has a connection be known no longer: its entry was deleted, as where its endpoint is drained.
func (a *answering) forget(k *flowKey) {
	place, what := a.at(k)
	if is := place.Load(); is>>32<<32 == what {
		place.CompareAndSwap(is, 0)
	}
}

// of returns the number of the endpoint of a connection, 0 if it is not known. It may be another's by now, as that of
// any mark may.
func (a *answering) of(k *flowKey) uint32 {
	place, what := a.at(k)
	if is := place.Load(); is>>32<<32 == what {
		return uint32(is)
	}
	return 0
}
