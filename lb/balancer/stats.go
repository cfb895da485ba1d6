package balancer

import (
	"net/netip"

	"github.com/sluice-lb/sluice/lb"
)

// Counts is what is counted of each backend. Counters of a service never go down while it
// stays in the table.
type Counts struct {
	// Picks is the number of successful Picks, and Failures of those that were
	// done with an error.
	Picks, Failures uint64
	// BytesIn and BytesOut are what was moved from clients and to them. Of a
	// connection that is open the last 256 KiB may be missing.
	BytesIn, BytesOut uint64
}

func (c *Counts) add(o Counts) {
	c.Picks += o.Picks
	c.Failures += o.Failures
	c.BytesIn += o.BytesIn
	c.BytesOut += o.BytesOut
}

// Refusals are the numbers of Picks that returned ErrNoBackend, ErrNoLocalBackend and
// ErrNotAllowed, and of clients that were beyond a limit, or have waited in a queue for too long.
type Refusals struct{ NoBackend, NoLocalBackend, NotAllowed, Limited uint64 }

func (r Refusals) sum() uint64 { return r.NoBackend + r.NoLocalBackend + r.NotAllowed + r.Limited }

// Stats is what one service port keeps from table to table, affinity excepted: counts since it
// first appeared in a table, and positions.
type Stats struct {
	ID lb.ID
	Counts
	Gone Counts // of these, what backends that have left for good had counted
	Refusals
	// OverShare is what ExceedsShare has counted.
	OverShare uint64
	// Ends are the connections that did not end as they should; nil: there was none.
	Ends *lb.Ends
	// First and Retry are the round robin positions of first attempts and of retries, of
	// policy Cluster and of policy Local.
	First, Retry [2]uint64
	// InFlight is the number of Picks that are not done, including those at
	// backends that have left the table.
	InFlight uint64
	// Held is the number of clients that wait for a backend, while there is none (Policies.Hold).
	Held uint64
	// Queued is the number of clients that wait since each backend has as many connections as it may.
	Queued uint64
	// AffinityEntries is the number of clients remembered, and AffinityEvicted
	// how many were evicted because there were too many.
	AffinityEntries int
	AffinityEvicted uint64
	// Conversations is the number of those remembered, and ConversationsEvicted how many were
	// evicted because there were too many.
	Conversations        int
	ConversationsEvicted uint64
	// Backends holds those of the table, in its order, and then those that have
	// left it and still have picks in flight.
	Backends []BackendStats
}

// BackendStats counts what happened to one backend since it first appeared in a
// table, with the meanings of Stats.
type BackendStats struct {
	Addr          netip.AddrPort
	Live          bool // flows that are there may stay
	Eligible      bool // new connections may go there by policy Cluster
	EligibleLocal bool // new connections may go there by policy Local
	Health        BackendHealth
	Pace          Pace
	Counts
	InFlight uint64
}

// All returns the numbers of all services in the order of the current table.
// It reads counters while they change, and so is exact for each and only nearly
// consistent between them, but for a Balancer without Picks meanwhile.
func (cs Counters) All() []Stats {
	cs.b.mu.Lock()
	defer cs.b.mu.Unlock()
	snap := cs.b.load()
	all := make([]Stats, snap.table.Len())
	for i, slot := range snap.table.Slots() {
		all[i] = snap.service(slot).stats(cs.b.updates)
	}
	return all
}

func (s *service) stats(update uint64) Stats {
	s.state.dropDrained(update)
	backends := s.all()
	total := Stats{
		ID:        s.state.id,
		Counts:    s.state.gone(),
		Gone:      s.state.gone(),
		Refusals:  s.state.refusals(),
		OverShare: s.state.overShare.Load(),
		Ends:      s.state.allEnds(),
		Held:      uint64(max(s.state.held.Load(), 0)),
		Backends:  make([]BackendStats, len(backends)),
	}
	total.Queued = uint64(max(s.state.queued(), 0))
	if t := s.state.sticky.Load(); t != nil {
		total.AffinityEntries, total.AffinityEvicted = t.Len(), t.Evicted()
	}
	for i := range s.state.conversations.all() {
		total.Conversations += s.state.conversations[i].Len()
		total.ConversationsEvicted += s.state.conversations[i].Evicted()
	}
	for in := range s.state.positions {
		at := &s.state.positions[in]
		total.First[in], total.Retry[in] = at.first.Load(), at.retry.Load()
	}
	for i, k := range backends {
		one := k.stats()
		one.Pace = s.pace(k)
		total.Counts.add(one.Counts)
		total.InFlight += one.InFlight
		total.Backends[i] = one
	}
	return total
}

// waiting returns how many clients wait.
func (s *state) waiting() uint64 { return uint64(max(s.held.Load(), 0) + max(s.queued(), 0)) }

func (b *backend) stats() BackendStats {
	return BackendStats{
		Addr:          b.addr,
		Live:          b.is(live),
		Eligible:      b.is(conditionOf(lb.ClusterSet)),
		EligibleLocal: b.is(conditionOf(lb.LocalSet)),
		Health:        b.remember(),
		Counts:        b.counts(),
		InFlight:      b.inFlight(),
	}
}

// ExceedsShare counts how often a service was kept from more than its share of what all have in common: once more, or
// as often as another Balancer has counted. For one that is not in the current table it does nothing. It neither
// allocates nor waits for Update.
func (b *Balancer) ExceedsShare(id lb.ID, times uint64) {
	snap := b.load()
	if slot, ok := snap.table.SlotOf(&id); ok {
		snap.service(slot).state.overShare.Add(times)
	}
}
