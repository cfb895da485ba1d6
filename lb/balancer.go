package lb

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
)

// Flow describes a new connection, or a new UDP flow, that needs a backend.
type Flow struct {
	// Frontend is what the client asked for.
	Frontend Frontend
	// Client is the address of the client. It is used for affinity only; if it is
	// the zero Addr the service is balanced as if it had no affinity.
	Client netip.Addr
	// Now is the time, in nanoseconds of a monotonic clock that is the same one
	// for all calls to a Balancer. It is used for affinity only.
	Now int64
	// Tried holds the backends that have failed for this connection already; nil
	// means none.
	Tried *Tried
}

// Balancer chooses backends according to the current Table, and keeps what has
// to outlive tables. The zero Balancer has an empty table and is ready to use.
// It must not be copied after first use. All methods may be called by any number
// of goroutines.
type Balancer struct {
	// Seed shuffles the order in which backends take turns. Nodes with different
	// seeds do not all begin with the same backends, and one that restarts with
	// its old seed goes on in its old order. Zero is as good as any other, once.
	// Set it before the first Update; later changes affect new services only.
	Seed uint64

	mu      sync.Mutex // serialises all but Pick, Table and Explain
	current atomic.Pointer[snapshot]
	updates uint64 // guarded by mu
}

// snapshot is a table made ready for Pick. It is immutable.
type snapshot struct {
	table    *Table
	services []service // by position in table.services
}

// service is a service port made ready for Pick, in one cache line.
type service struct {
	state           *state
	ring            ring
	affinityTimeout int64
	backends        []*backend // by position in Service.Backends
}

var empty = &snapshot{table: &Table{}}

func (b *Balancer) load() *snapshot {
	if s := b.current.Load(); s != nil {
		return s
	}
	return empty
}

// Table returns the current table; it is never nil.
func (b *Balancer) Table() *Table { return b.load().table }

// Pick chooses a backend for f. Among the eligible ones the backends take exact
// turns, except that a client of a service with affinity stays where it was sent
// last, until that has expired, is no longer eligible or is in f.Tried. Backends
// in f.Tried are passed over, the others taking turns in retries; if all were
// tried Pick gives the next in turn nevertheless, and it is for the caller to limit
// the attempts.
//
// The error is ErrNoService or ErrNoBackend. If it is nil the caller must call
// Done of the choice, once. Pick neither allocates nor waits for Update.
func (b *Balancer) Pick(f Flow) (Choice, error) {
	snap := b.load()
	i, ok := snap.table.find(&f.Frontend)
	if !ok {
		return Choice{}, ErrNoService
	}
	s := &snap.services[i]
	if len(s.ring) == 0 {
		s.state.noBackend.Add(1)
		return Choice{}, ErrNoBackend
	}
	var chosen *backend
	if s.affinityTimeout > 0 && f.Client.IsValid() {
		chosen = s.pickSticky(&f)
	} else {
		chosen = s.ring.next(&s.state.turns, f.Tried)
	}
	chosen.picks.Add(1)
	return Choice{chosen}, nil
}

// pickSticky returns the backend that the client of f is to stay with.
func (s *service) pickSticky(f *Flow) *backend {
	if b := s.remembered(f); b != nil {
		return b
	}
	s.state.choosing.Lock()
	defer s.state.choosing.Unlock()
	if b := s.remembered(f); b != nil {
		return b // another connection of this client was first
	}
	b := s.ring.next(&s.state.turns, f.Tried)
	s.state.affinity.Put(f.Client, b, f.Now)
	return b
}

// remembered returns the backend that the client of f was sent to last, if it
// can be used, or nil.
func (s *service) remembered(f *Flow) *backend {
	b, ok := s.state.affinity.Get(f.Client, f.Now, s.affinityTimeout)
	if !ok || !b.is(eligible) || f.Tried.has(b) {
		return nil
	}
	return b
}

// Sweep forgets the clients whose affinity has expired at time now, which is on
// the clock of Flow.Now. They have no effect on Pick, only a cost in memory, so
// that once a minute is often enough.
func (b *Balancer) Sweep(now int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	snap := b.load()
	for i := range snap.services {
		if s := &snap.services[i]; s.affinityTimeout > 0 {
			s.state.affinity.Sweep(now, s.affinityTimeout)
		}
	}
}

// Update makes t the current table; nil means an empty one. What outlives tables
// is kept for each service whose ID is in t, and dropped for all others. Clients
// forget backends that are no longer eligible.
//
// Pick uses either the old or the new table, whole. Update prepares only the
// services whose backends differ from those in the old table; for all others it
// compares.
func (b *Balancer) Update(t *Table) {
	if t == nil {
		t = empty.table
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.updates++
	old := b.load()
	next := &snapshot{table: t, services: make([]service, t.Len())}
	kept := make([]bool, len(old.services))
	var changed []change
	var unstuck []service
	for i := range t.services {
		s := &t.services[i]
		c := change{to: i}
		from := old.position(i, s.ID)
		if from >= 0 {
			kept[from] = true
			c.from = old.services[from]
		}
		if from >= 0 && sameBackends(old.table.services[from].Backends, s.Backends) {
			next.services[i] = c.from
		} else {
			next.services[i] = b.prepare(s, c.from)
			changed = append(changed, c)
		}
		next.services[i].affinityTimeout = s.AffinityTimeout
		if s.AffinityTimeout == 0 && c.from.affinityTimeout > 0 {
			unstuck = append(unstuck, c.from)
		}
	}
	b.current.Store(next)

	// From here on no new Pick sees the old table, so that what is taken away now
	// is not handed out again.
	for _, c := range changed {
		next.finish(c, b.updates)
	}
	for _, s := range unstuck {
		s.state.forgetAll()
	}
	for i := range old.services {
		if !kept[i] {
			old.services[i].drop()
		}
	}
}

// change is a service whose backends are not what they were.
type change struct {
	from service // in the old snapshot; zero for a new service
	to   int     // position in the new snapshot
}

// position returns where the service with this ID is, or -1. It looks at guess
// first, since tables are made in the same order again and again.
func (s *snapshot) position(guess int, id ID) int {
	if guess < len(s.table.services) && s.table.services[guess].ID == id {
		return guess
	}
	if i, ok := s.table.ids[id]; ok {
		return int(i)
	}
	return -1
}

// sameBackends compares without looking if the slices are one.
func sameBackends(a, b []Backend) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0] || slices.Equal(a, b))
}

// prepare makes s ready for Pick, with the state and those backends of from that
// are still there. Backends that become live or eligible are so at once; those
// that cease to be are left to finish.
func (b *Balancer) prepare(s *Service, from service) service {
	to := service{
		state:    from.state,
		ring:     make(ring, 0, len(s.Backends)),
		backends: make([]*backend, len(s.Backends)),
	}
	if to.state == nil {
		to.state = newState(s.ID, b.Seed)
	}
	known := make(map[netip.AddrPort]*backend, len(from.backends)+len(to.state.leaving))
	for _, k := range slices.Concat(from.backends, to.state.leaving) {
		known[k.addr] = k
	}
	ready := anyReady(s.Backends)
	for i := range s.Backends {
		k := known[s.Backends[i].Addr]
		if k == nil {
			k = to.state.newBackend(s.Backends[i].Addr)
		}
		k.update = b.updates
		condition := conditionOf(&s.Backends[i], ready)
		k.condition.Or(condition)
		to.backends[i] = k
		if condition&eligible != 0 {
			to.ring = append(to.ring, k)
		}
	}
	to.ring.sort()
	// Turns that are taken between the two are taken again: a Pick at the moment
	// of a change may repeat one.
	to.state.turns.first.Store(from.ring.resume(to.state.turns.first.Load(), to.ring))
	return to
}

// finish takes from backends what a change takes from them, once the snapshot
// that has the change is current.
func (s *snapshot) finish(c change, update uint64) {
	to := &s.services[c.to]
	to.state.settle(update)
	lost := false
	for _, k := range c.from.backends {
		if k.update != update {
			k.condition.Store(0)
			to.state.leaving = append(to.state.leaving, k)
			lost = true
		}
	}
	backends := s.table.services[c.to].Backends
	ready := anyReady(backends)
	for i, k := range to.backends {
		condition := conditionOf(&backends[i], ready)
		if k.condition.Swap(condition)&^condition&eligible != 0 {
			lost = true
		}
	}
	if lost {
		to.state.unstick()
	}
}

// drop lets go of a service that is no longer in the table. Choices that are
// still in flight refer to its state, so its affinity memory is freed here.
func (s *service) drop() {
	for _, k := range s.backends {
		k.condition.Store(0)
	}
	s.state.forgetAll()
}
