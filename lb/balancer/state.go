package balancer

import (
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/sluice-lb/sluice/affinity"
	"github.com/sluice-lb/sluice/lb"
)

// state is what one service port keeps from table to table.
type state struct {
	id        lb.ID
	balancer  *Balancer
	hash      uint64 // of id, with the seed
	floors    atomic.Pointer[floors]
	positions [lb.Sets]positions

	// Picks that ended with ErrNoBackend, ErrNoLocalBackend and ErrNotAllowed.
	noBackend, noLocalBackend, notAllowed atomic.Uint64
	// overShare is how often the service was kept from more than its share.
	overShare atomic.Uint64
	ends      atomic.Pointer[endCounts] // nil until a connection does not end as it should
	times     atomic.Pointer[timed]     // nil until there is a connection

	// conns is how many connections there are, of clients that were admitted, and limited how many were refused because
	// of a limit. clients is nil until the service limits what each may do.
	conns   atomic.Int64
	limited atomic.Uint64
	clients atomic.Pointer[clients]
	queue   atomic.Pointer[queue] // nil until the service has limited the connections of each backend

	// held is how many clients wait for a backend, and needed when OnNeed was called last.
	held, needed atomic.Int64

	runs     [kinds]runs
	policies atomic.Pointer[lb.Policies] // that hold

	countsInFlight atomic.Bool // as the policies say, for each connection

	sticky        atomic.Pointer[stickyTable] // nil until the service has affinity
	conversations *conversations              // nil but for UDP

	// The rest is guarded by Balancer.mu.

	past *past // nil until a backend has left
	// ejected is how many backends are that would get connections.
	ejected int
}

// stickyTable maps clients to backends. A miss holds choosing from looking the client up again to remembering the
// backend, so that the connections which a new client opens at once all go the same way.
// It is never held for a hit, but where backends have a limit of connections.
type stickyTable struct {
	affinity.Table[affinity.Key, *backend]
	choosing sync.Mutex
}

// past is what a service port keeps of backends that are no longer in the table.
type past struct {
	// leaving holds them until the last connection there is done. One that comes back meanwhile goes on counting.
	leaving []*backend
	// gone is what those that have left for good had counted, so that the totals of the service never go down.
	gone Counts
}

// backend is what a service port keeps of one endpoint, from table to table: 128 bytes, which are a size of Go's
// allocator and two cache lines.
type backend struct {
	addr    netip.AddrPort
	order   uint64 // position in the rings
	service *state

	// condition is a combination of live, eligible, leftOut, stays, counted, onNode and limited in the current table.
	condition atomic.Uint32
	burden    atomic.Uint32 // what one connection weighs by least connections; 0: as much as at all others

	// counter has what is in flight, and below that the number of picks. So a Pick and a Done cost one atomic
	// addition each, the metrics have their counters, and who compares backends reads one number of each.
	counter  atomic.Uint64
	failures atomic.Uint64

	bytesIn, bytesOut atomic.Uint64 // see Meter

	health atomic.Pointer[health] // nil until it fails, or starts slowly

	latency  atomic.Uint64 // see took
	left     atomic.Int64  // when it was found to have left; 0: it was not, see Choice.Leaves
	appeared atomic.Bool   // see Choice.Appear

	// Guarded by Balancer.mu.
	nextCondition uint32 // what it is after the last Update
	update        uint64 // the last Update that had this backend
}

const (
	eligible uint32 = 1<<lb.Sets - 1 // new connections may go there: the sets it is in
	live     uint32 = 1 << lb.Sets   // flows that are there may stay
	leftOut  uint32 = live << 1      // it is left out of a set that it would be in, since it is ejected
	stays    uint32 = live << 2      // connections may stay whatever the policy
	counted  uint32 = live << 3      // its service goes by least connections
	onNode   uint32 = live << 4      // it runs on this node
	limited  uint32 = live << 5      // its service limits the connections of each backend

	marks = stays | counted | onNode | limited // what is no condition of new connections, or of flows
)

// conditionOf returns the one of backends in the set.
func conditionOf(in lb.Set) uint32 { return 1 << in }

// is reports whether any of these conditions is true.
func (b *backend) is(condition uint32) bool { return b.condition.Load()&condition != 0 }

// What backend.counter counts. A backend has less than 2^20 connections from one host, since each takes a port there,
// and 2^44 picks are more than a million each second for half a year.
const (
	inFlightAt = 44
	oneMore    = 1 << inFlightAt // connection in flight
)

func (b *backend) begin() { b.counter.Add(oneMore + 1) }

func (b *backend) end() {
	left := b.counter.Add(^uint64(oneMore) + 1)
	condition := b.condition.Load()
	if condition&(counted|limited) == 0 {
		return
	}
	if condition&counted != 0 {
		b.service.relieved(b, condition, left>>inFlightAt)
	}
	if condition&limited != 0 {
		b.service.servePlace(b)
	}
}

func (b *backend) inFlight() uint64 { return b.counter.Load() >> inFlightAt }
func (b *backend) picks() uint64    { return b.counter.Load() & (oneMore - 1) }

func (b *backend) counts() Counts {
	return Counts{b.picks(), b.failures.Load(), b.bytesIn.Load(), b.bytesOut.Load()}
}

func (s *state) refusals() Refusals {
	return Refusals{s.noBackend.Load(), s.noLocalBackend.Load(), s.notAllowed.Load(), s.limited.Load()}
}

func newState(id lb.ID, b *Balancer) *state {
	s := &state{id: id, balancer: b, hash: hashID(id, b.Seed)}
	s.policies.Store(&b.Defaults)
	if id.Protocol == lb.UDP {
		s.conversations = new(conversations)
		for i := range s.conversations {
			s.conversations[i].Max = maxConversations
		}
	}
	// Half the range, so that the counter does not overflow in the middle of a
	// round.
	for i := range s.positions {
		s.positions[i].first.Store(s.hash >> 1)
		s.positions[i].retry.Store(s.hash >> 1)
	}
	return s
}

// init makes a zero backend one of s.
func (b *backend) init(s *state, addr netip.AddrPort) *backend {
	b.addr, b.order, b.service = addr, hashAddr(s.hash, addr), s
	return b
}

// dropDrained drops the leaving backends that have no connection left, and those that
// came back in this update. A Pick that was busy with the table before may be missing from the
// counters after that.
func (s *state) dropDrained(update uint64) {
	p := s.past
	if p == nil {
		return
	}
	still := p.leaving[:0]
	for _, b := range p.leaving {
		switch {
		case b.update == update:
		case b.inFlight() == 0:
			p.gone.add(b.counts())
		default:
			still = append(still, b)
		}
	}
	clear(p.leaving[len(still):])
	p.leaving = still
}

// leaving returns the backends that are.
func (s *state) leaving() []*backend {
	if s.past == nil {
		return nil
	}
	return s.past.leaving
}

// gone returns what those that have left had counted.
func (s *state) gone() (c Counts) {
	if s.past == nil {
		return c
	}
	return s.past.gone
}

// leaves has backends leave.
func (s *state) leaves(backends ...*backend) {
	if s.past == nil {
		s.past = new(past)
	}
	s.past.leaving = append(s.past.leaving, backends...)
}

// dropIneligible deletes the clients whose backends take no new connections any more, at
// no address.
func (s *state) dropIneligible() {
	if t := s.sticky.Load(); t != nil {
		t.DeleteFunc(func(b *backend) bool { return !b.is(eligible | leftOut) })
	}
}

// deleteAll empties the affinity memory.
func (s *state) deleteAll() {
	if t := s.sticky.Load(); t != nil {
		t.DeleteFunc(func(*backend) bool { return true })
	}
}

// forgetConversations empties that of UDP flows.
func (s *state) forgetConversations() {
	for i := range s.conversations.all() {
		s.conversations[i].DeleteFunc(func(conversation) bool { return true })
	}
}

// conditions returns those of b, one of the backends that sel was made from.
func conditions(sel lb.Selection, b *lb.Backend) uint32 {
	var c uint32
	if b.Live() {
		c |= live
	}
	if b.Stays() {
		c |= stays
	}
	for in := range lb.Sets {
		if sel.Has(in, b) {
			c |= conditionOf(in)
		}
	}
	return c
}
