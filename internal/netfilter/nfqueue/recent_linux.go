package nfqueue

import (
	"hash/maphash"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// manyRecent is how many flows a queue remembers: more than packets can wait in its socket (room) and in one batch.
	manyRecent = 1 << 10

	// underWay is how long a packet may take on another core from conntrack to the queue.
	underWay = 5 * time.Millisecond
)

// recent has the flows that a queue has decided last. Until the kernel has a flow's verdict each of its packets is a
// first one. Such a packet is in the socket by then, so it is read before the socket is found empty twice. A datagram
// may also be under way to the socket, on another core.
type recent struct {
	seed  maphash.Seed
	flows [manyRecent]decided // the nth flow is at n % manyRecent
	last  [manyRecent]uint64  // the last flow of each hash; 0: there is none
	n     uint64              // the last flow
}

type decided struct {
	flow
	verdict Verdict
	when
	before uint64 // the flow before it with the same hash
}

// when is the time of a verdict.
type when struct {
	drained uint64        // how often the socket was found empty
	at      time.Duration // since some moment
}

// find returns a flow, which it adds unless it is known.
func (r *recent) find(of flow, now when) (f *decided, known bool) {
	last := &r.last[maphash.Comparable(r.seed, of)%manyRecent]
	for n := *last; n != 0 && r.n-n < manyRecent; n = f.before {
		f = &r.flows[n%manyRecent]
		waits, comes := f.drained+1 >= now.drained, now.at-f.at < underWay
		if !waits && !comes {
			break // those before are older still
		}
		if f.flow == of && (waits || of.protocol == unix.IPPROTO_UDP) {
			return f, true
		}
	}
	r.n++
	f = &r.flows[r.n%manyRecent]
	*f = decided{flow: of, when: now, before: *last}
	*last = r.n
	return f, false
}
