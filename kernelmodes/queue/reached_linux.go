package queue

import (
	"hash/maphash"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sluice-lb/sluice/lb"
)

// An endpoint may be silent to some clients only, as a policy of the network has it (NetworkPolicy): conntrack does not
// show whether a packet was dropped, or came to a host that is down. So silence is an endpoint's failure if its client
// was answered by one of the Service a moment ago. Else each client is believed once in an interval, as with resets:
// one that is let in nowhere has nothing ejected that serves others.

const (
	// reachedFor is how long a client is known to reach a Service.
	reachedFor = int64(10 * time.Second)

	// manyReached is how many are. One may take the place of another, which is believed less then.
	manyReached = 1 << 12
)

// reached has clients of Services that were answered: 32 bits of a hash, and the second.
type reached [manyReached]atomic.Uint64

func (r *reached) at(of lb.ID, client host) (place *atomic.Uint64, what uint64) {
	h := maphash.Comparable(flowSeed, struct {
		lb.ID
		host
	}{of, client})
	return &r[h%manyReached], h >> 32
}

func (r *reached) add(one *flow, k *flowKey, now int64) {
	place, what := r.at(one.choice.Service(), k.host())
	if next := what<<32 | uint64(uint32(now/int64(time.Second))); place.Load() != next {
		place.Store(next)
	}
}

func (r *reached) has(of lb.ID, client host, now int64) bool {
	place, what := r.at(of, client)
	n := place.Load()
	return n>>32 == what && n != 0 && uint32(now/int64(time.Second))-uint32(n) <= uint32(reachedFor/int64(time.Second))
}

// blame ends the choice of a flow whose endpoint was silent.
func (s *Server) blame(k *flowKey, choice lb.Choice) {
	now := s.Now()
	if s.following.reached.has(choice.Service(), k.host(), now) {
		choice.Failed(syscall.ETIMEDOUT, now)
		return
	}
	choice.NotAnswered(syscall.ETIMEDOUT, addrOf(k.client), now)
	choice.Done(nil)
}
