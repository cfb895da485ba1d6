package track

import (
	"hash/maphash"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sluice-lb/sluice/lb"
)

// A NetworkPolicy may let an endpoint be silent to some clients only: conntrack does not show who dropped a packet. So
// silence is an endpoint's failure if its Service has answered the client within reachedFor. Else each client is
// believed once in an interval, as with resets: a client that is let in nowhere ejects no endpoint that serves others.

const (
	// reachedFor is how long a client is known to reach a Service.
	reachedFor = int64(10 * time.Second)

	// manyReached is how many pairs of a client and a Service are remembered. A new pair may take the place of another,
	// whose client is then believed once in an interval only.
	manyReached = 1 << 12
)

// reachable has clients that their Services have answered: 32 bits of a hash of the pair, and the second.
type reachable [manyReached]atomic.Uint64

func (r *reachable) at(of lb.ID, client host) (place *atomic.Uint64, what uint64) {
	h := maphash.Comparable(flowSeed, struct {
		lb.ID
		host
	}{of, client})
	return &r[h%manyReached], h >> 32
}

func (r *reachable) add(of lb.ID, client host, now int64) {
	place, what := r.at(of, client)
	if next := what<<32 | uint64(uint32(now/int64(time.Second))); place.Load() != next {
		place.Store(next)
	}
}

func (r *reachable) has(of lb.ID, client host, now int64) bool {
	place, what := r.at(of, client)
	n := place.Load()
	return n>>32 == what && n != 0 && uint32(now/int64(time.Second))-uint32(n) <= uint32(reachedFor/int64(time.Second))
}

// blame ends the choice of a flow whose endpoint was silent.
func (t *Tracker) blame(k *flowKey, choice lb.Choice) {
	now := t.Now()
	if t.reachable.has(choice.Service(), k.host(), now) {
		choice.Failed(syscall.ETIMEDOUT, now)
		return
	}
	choice.NotAnswered(syscall.ETIMEDOUT, addrOf(k.client), now)
	choice.Done(nil)
}
