package udp

import (
	"math/rand/v2"
	"net/netip"
	"sync/atomic"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/look"
	"github.com/sluice-lb/sluice/internal/proxyproto"
	"github.com/sluice-lb/sluice/lb"
)

// perWalk is how many flows are looked at after a change of the table before the loop's
// sockets are served: some 0.3 ms.
const perWalk = 1024

// shard is the part of a Server that lives on one loop, or the whole of one without loops.
type shard struct {
	server       *Server
	io           transport
	places       int   // how many flows there may be
	ages         order // all flows
	oneShots     order // flows that were answered once, the most recently active first
	services     holders[lb.Name]
	clients      holders[netip.Addr]
	pressedUntil int64 // time until which flows expire early, ns
	portless     int64 // time until which no port is asked for, ns, since there was none
	scan         func()
	drain        eventloop.Drain
	count        loopCounters
	ids          proxyproto.IDs

	index  int         // of its loop
	sample look.Sample // of flows that are logged
	why    lb.Why      // of the last choice

	scanning atomic.Bool // a scan is posted and has not begun
	stale    bool        // the table has changed since the last walk over the flows began

	loopShard // of the platform
}

// transport moves the datagrams of a shard. Only do, post, bind, stop and leave may be called from
// anywhere; the others are for functions that do and post run.
type transport interface {
	do(fn func()) error   // runs fn where the shard may be used, and waits for it
	post(fn func()) error // does not wait if there are loops
	walk()                // calls shard.walk, now or later, until there is no more

	// bind makes the socket of a listener, the first of its frontend or one beside that, and
	// returns its address. start begins to forward; stop closes the socket and the flows.
	bind(ln *listener, addr netip.AddrPort, first bool) (netip.AddrPort, error)
	start(ln *listener) error
	stop(ln *listener)
	leave(ln *listener) // parks the flows and reads no more, if they can be parked

	open(f *flow, backend netip.AddrPort) error          // makes the flow's socket, unless it is inherited
	connect(f *flow, to netip.AddrPort, now int64) error // again after a refusal
	watch(f *flow) error                                 // begins to pass answers on
	after(f *flow, ns int64)                             // looks then whether f has expired
	resend(f *flow)                                      // sends what was refused
	close(f *flow)

	// inherit takes the socket of a flow that is closed next, for the flow that reuses its memory. False: the socket is
	// closed with the flow.
	inherit(f *flow, backend netip.AddrPort) (loopFlow, bool)
}

// newShard makes one of several shards of a Server, without a transport.
func newShard(s *Server, shards int) *shard {
	sh := &shard{
		server:   s,
		places:   s.places(shards),
		ages:     order{by: byAge},
		oneShots: order{by: byAnswer},
		services: newHolders[lb.Name](byService),
		clients:  newHolders[netip.Addr](byClient),
		ids:      proxyproto.IDs{Maker: rand.Uint64()},
	}
	sh.scan = sh.leaveGone
	return sh
}

// scheduleScan looks for flows that have to leave their backends. It may be called from
// anywhere. One scan serves all changes that were made before it.
func (sh *shard) scheduleScan() {
	if sh.scanning.CompareAndSwap(false, true) && sh.io.post(sh.scan) != nil {
		sh.scanning.Store(false)
	}
}

// leaveGone makes each flow leave its backend if that is gone, or if the frontend has
// become another Service's. A walk that is under way is followed by another.
func (sh *shard) leaveGone() {
	sh.scanning.Store(false)
	sh.stale = true
	sh.io.walk()
}

// walk looks at some flows, and reports whether more are left. It goes from the youngest to
// the oldest, an order that activity does not change. A flow that is made meanwhile is not
// looked at: it is chosen by the new table.
func (sh *shard) walk() bool {
	flows := &sh.ages
	if flows.ahead == nil && sh.stale {
		sh.stale = false
		flows.ahead = flows.first
	}
	now, table := eventloop.Now(), sh.server.LB.Table()
	for n := 0; n < perWalk && flows.ahead != nil; n++ {
		f := flows.ahead
		flows.ahead = f.links[byAge].next
		switch {
		case f.stale(table):
			f.leave(now)
		case sh.drain.Started():
			f.later(now, max(f.rest(now), 0))
		}
	}
	return flows.ahead != nil || sh.stale
}

// startDrain refuses new clients from now on, and has flows expire sooner.
func (sh *shard) startDrain() {
	sh.drain.Start(sh.ages.len == 0)
	sh.leaveGone()
}
