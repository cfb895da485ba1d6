package balancer

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sluice-lb/sluice/affinity"
	"github.com/sluice-lb/sluice/lb"
)

// Balancer chooses backends according to the current Table, and keeps what has to outlive tables, in parts: [Health],
// [Queues], [Memory] and [Counters]. The zero Balancer has an empty table and is ready to use. It must not be copied
// after first use. All methods may be called by any number of goroutines.
type Balancer struct {
	// Seed shuffles the round robin order of backends. Nodes with different
	// seeds do not all begin with the same backends, and one that restarts with
	// its old seed goes on in its old order. Zero is as good as any other, once.
	// Set it before the first Update; later changes affect new services only.
	Seed uint64

	// Defaults hold for services that do not request otherwise. Set them before the first Update.
	Defaults lb.Policies

	// Loops is how many there are that count Times, and Timed how many service ports have their own, the first that
	// have connections. Set them before the first Update.
	Loops, Timed int

	// Outlier is when backends are ejected. Set it before the first Update.
	Outlier lb.Outlier
	// OnEjection is called when a backend is ejected or returns, in any goroutine. It must neither block nor call the
	// Balancer. Set it before the first Update; nil: nothing is called.
	OnEjection func(lb.Ejection)
	// OnNeed is called when a client waits for a service without backends, every 30 s at most (lb.Policies.Hold).
	// It is as OnEjection.
	OnNeed func(lb.ID)

	mu      sync.Mutex // serialises what changes or looks at all services; no Pick takes it
	current atomic.Pointer[snapshot]

	// Queues has these.
	resuming atomic.Bool         // no queue is served, see Queues.Resuming
	resumed  map[*state]struct{} // whose queues were resumed; guarded by mu

	updates  uint64 // guarded by mu, as are watchers
	watchers []func()
	outliers outliers // Health has them
	drains   atomic.Pointer[lb.Drains]
	times    times // Counters has them
}

// snapshot is a table made ready for Pick. It is immutable, but for what an ejection changes of a service.
type snapshot struct {
	table    *lb.Table
	services []*servicePage // as the table's records
	backends int            // of all services
}

// servicePage is made of a page of a table's records. Snapshots whose tables share that share this.
type servicePage struct {
	services [lb.PageSize]atomic.Pointer[service]
	backends int // of all of them
}

// service returns the one in a slot.
func (s *snapshot) service(slot int32) *service { return s.at(slot).Load() }

func (s *snapshot) at(slot int32) *atomic.Pointer[service] {
	return &s.services[uint32(slot)/lb.PageSize].services[uint32(slot)%lb.PageSize]
}

// service is a service port made ready for Pick. It is immutable, and snapshots share it.
type service struct {
	state           *state
	rings           [lb.Sets]ring
	affinityTimeout int64
	backends        []*backend // by position in Service.Backends
	method          *method    // nil: equal turns
	limit           uint64     // of connections at each backend; 0: none
	eligibles       int        // how many are in a set, or would be if they were not bad
}

var empty = &snapshot{table: &lb.Table{}}

func (b *Balancer) load() *snapshot {
	if s := b.current.Load(); s != nil {
		return s
	}
	return empty
}

// Table returns the current table; it is never nil.
func (b *Balancer) Table() *lb.Table { return b.load().table }

// Pick chooses a backend for f: of those that are eligible by the traffic policy of the
// address, by the algorithm of the service, or with affinity the one that the client was sent to last,
// unless it is not eligible there. Backends in f.Tried are passed over, in a round robin of
// retries; if all were tried Pick gives the next one nevertheless, and the caller limits the
// attempts.
//
// The error is one of those of this package. If it is nil the caller must call Done of the
// choice, once. Pick neither allocates nor waits for Update.
func (b *Balancer) Pick(f Flow) (Choice, error) { return b.pick(&f) }

func (b *Balancer) pick(f *Flow) (Choice, error) {
	snap := b.load()
	at, ok := snap.table.Find(&f.Frontend)
	if !ok {
		return Choice{}, ErrNoService
	}
	s := snap.service(at.Slot)
	from := lb.ClusterSet
	if at.Ruled {
		if from, ok = snap.table.Admit(at, &f.Frontend, f.Client); !ok {
			s.state.notAllowed.Add(1)
			return Choice{}, ErrNotAllowed
		}
	}
	if len(s.rings[from]) == 0 {
		return Choice{}, s.noBackend(f)
	}
	var chosen *backend
	switch {
	case s.limit > 0 && !f.Forwarded:
		return s.pickWithin(from, f, false)
	case s.affinityTimeout > 0 && f.Client.IsValid():
		chosen = s.pickSticky(from, f)
	case s.method == nil && f.Tried.none(): // as next does, without the calls
		chosen = s.rings[from].at(s.state.positions[from].first.Add(1) - 1)
		f.because(lb.ByAlgorithm(lb.RoundRobin))
		if chosen.starts() != nil {
			chosen = s.slowly(from, f, chosen)
		}
	default:
		chosen = s.next(from, f)
	}
	chosen.begin()
	return Choice{chosen}, nil
}

// Only reports whether c is all that Pick can return for f now.
func (b *Balancer) Only(f Flow, c Choice) bool {
	snap := b.load()
	at, ok := snap.table.Find(&f.Frontend)
	if !ok {
		return false
	}
	from := lb.ClusterSet
	if at.Ruled {
		if from, ok = snap.table.Admit(at, &f.Frontend, f.Client); !ok {
			return false
		}
	}
	r := snap.service(at.Slot).rings[from]
	return len(r) == 1 && r[0] == c.backend
}

// noBackend counts and returns why a set is empty. The cluster set is empty only if
// the local set is.
func (s *service) noBackend(f *Flow) error {
	if len(s.rings[lb.ClusterSet]) == 0 {
		if f.Forwarded || s.state.policies.Load().Hold <= 0 { // else Hold counts those that are not held
			s.state.noBackend.Add(1)
		}
		return ErrNoBackend
	}
	s.state.noLocalBackend.Add(1)
	return ErrNoLocalBackend
}

// pickSticky returns the backend of a set that the client of f is to stay with.
func (s *service) pickSticky(from lb.Set, f *Flow) *backend {
	if b := s.remembered(from, f); b != nil {
		return b
	}
	sticky := s.state.sticky.Load()
	sticky.choosing.Lock()
	defer sticky.choosing.Unlock()
	if b := s.remembered(from, f); b != nil {
		return b // another connection of this client was first
	}
	b := s.next(from, f)
	sticky.Put(affinity.KeyOf(f.Client), b, f.Now)
	return b
}

// remembered returns the backend that the client of f was sent to last, if it
// can be used, or nil.
func (s *service) remembered(from lb.Set, f *Flow) *backend {
	b, ok := s.state.sticky.Load().Get(affinity.KeyOf(f.Client), f.Now, s.affinityTimeout)
	if !ok || !b.is(conditionOf(from)) || f.Tried.has(b) {
		return nil
	}
	f.because(lb.ByAffinity)
	return b
}

// Sweep deletes the clients whose affinity has expired at time now, which is on
// the clock of Flow.Now, and such conversations. They have no effect on Pick, only a cost in memory, so
// that once a minute is often enough.
func (b *Balancer) Sweep(now int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	snap := b.load()
	for _, slot := range snap.table.Slots() {
		s := snap.service(slot)
		if s.affinityTimeout > 0 {
			s.state.sticky.Load().Sweep(now, s.affinityTimeout)
		}
		for i := range s.state.conversations.all() {
			s.state.conversations[i].Sweep(now, conversationTimeouts[i])
		}
		if c := s.state.clients.Load(); c != nil {
			c.sweep(now)
		}
	}
}

// Update makes t the current table; nil means an empty one. What outlives tables
// is kept for each service whose ID is in t, and dropped for all others. Affinity to
// backends that are no longer eligible ends. Pick uses either the old or the new table, whole.
func (b *Balancer) Update(t *lb.Table) {
	if t == nil {
		t = empty.table
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.updates++
	old := b.load()
	next := &snapshot{table: t, services: make([]*servicePage, t.Pages())}
	u := updating{old: old, kept: make(map[int32]bool)}
	for i := range next.services {
		page := t.Page(i)
		if page == nil {
			continue
		}
		if page == old.table.Page(i) {
			next.services[i] = old.services[i]
		} else {
			next.services[i] = b.page(page, i, &u)
		}
		next.backends += next.services[i].backends
	}
	b.current.Store(next)

	// From here on no new Pick sees the old table, so that what is taken away now
	// is not handed out again.
	for _, c := range u.changed {
		b.finish(c[1], c[0])
	}
	var dropped []*service
	for i := range old.services {
		page := old.table.Page(i)
		if page == nil || page == t.Page(i) {
			continue
		}
		for k := range lb.PageSize {
			if slot := int32(i*lb.PageSize + k); page.At(k) != nil && !u.kept[slot] {
				b.drop(old.service(slot))
				dropped = append(dropped, old.service(slot))
			}
		}
	}
	for _, s := range u.readdressed {
		s.serveQueue() // some may wait for what is another service's now
	}
	b.watch(u.changed, dropped)
}

// updating is what becomes of the services of a snapshot.
type updating struct {
	old         *snapshot
	kept        map[int32]bool // slots whose services stay, of pages that are not the same
	changed     [][2]*service  // from and to
	readdressed []*state       // of services with other addresses, and clients that wait
}

// page makes a page of services from one of a table.
func (b *Balancer) page(of *lb.Page, i int, u *updating) *servicePage {
	page := new(servicePage)
	for k := range lb.PageSize {
		s := of.At(k)
		if s == nil {
			continue
		}
		page.backends += len(s.Backends)
		was := &fresh
		if at, known := u.old.slotOf(int32(i*lb.PageSize+k), &s.ID); known != nil {
			u.kept[at] = true
			was = u.old.service(at)
			if known == s || known.SameBalance(s) {
				page.services[k].Store(was)
				if known != s && was.state.queued() > 0 {
					u.readdressed = append(u.readdressed, was.state)
				}
				continue
			}
		}
		to := b.prepare(s, was)
		page.services[k].Store(to)
		u.changed = append(u.changed, [2]*service{was, to})
	}
	return page
}

// slotOf returns the slot and the service with an ID. It is in the given one nearly always.
func (s *snapshot) slotOf(slot int32, id *lb.ID) (int32, *lb.Service) {
	if page := s.table.Page(int(slot) / lb.PageSize); page != nil {
		if at := page.At(int(slot) % lb.PageSize); at != nil && at.ID == *id {
			return slot, at
		}
	}
	if slot, ok := s.table.SlotOf(id); ok {
		return slot, s.table.In(slot)
	}
	return 0, nil
}

// all returns the backends of the table and those that are leaving it, in a fresh slice. The
// caller holds Balancer.mu.
func (s *service) all() []*backend { return slices.Concat(s.backends, s.state.leaving()) }

// byAddr returns a function that finds them by their addresses; in a short list looking at each is faster.
func (s *service) byAddr() func(netip.AddrPort) *backend {
	all := s.backends
	if len(s.state.leaving()) > 0 {
		all = s.all()
	}
	const few = 8
	if len(all) <= few {
		return func(addr netip.AddrPort) *backend {
			for _, k := range all {
				if k.addr == addr {
					return k
				}
			}
			return nil
		}
	}
	by := make(map[netip.AddrPort]*backend, len(all))
	for _, k := range all {
		by[k.addr] = k
	}
	return func(addr netip.AddrPort) *backend { return by[addr] }
}

// fresh is what a service was that is new.
var fresh = service{state: new(state)}

// prepare makes s ready for Pick, with the state and those backends of from that
// are still there. Backends that become live or eligible are so at once; those
// that cease to be are left to finish.
func (b *Balancer) prepare(s *lb.Service, from *service) *service {
	to := &service{state: from.state, affinityTimeout: s.AffinityTimeout, backends: make([]*backend, len(s.Backends))}
	to.rings[lb.ClusterSet] = make(ring, 0, len(s.Backends))
	if from == &fresh {
		to.state = newState(s.ID, b)
	}
	policies := s.InForce(&b.Defaults)
	to.state.policies.Store(policies)
	to.state.countsInFlight.Store(policies.CountsInFlight())
	if policies.MaxEndpointConnections > 0 && s.Protocol != lb.UDP { // flows of UDP do not end by themselves
		to.limit = uint64(policies.MaxEndpointConnections)
		to.state.line()
	}
	if limitsClients(policies) && to.state.clients.Load() == nil {
		to.state.clients.Store(new(clients))
	}
	if s.AffinityTimeout > 0 && to.state.sticky.Load() == nil {
		to.state.sticky.Store(new(stickyTable))
	}
	known := from.byAddr()
	missing := 0
	for i := range s.Backends {
		if known(s.Backends[i].Addr) == nil {
			missing++
		}
	}
	fresh := make([]backend, missing) // at once: the collector counts objects
	sel := lb.Select(s.Backends)
	for i := range s.Backends {
		k := known(s.Backends[i].Addr)
		if k == nil {
			k, fresh = &fresh[0], fresh[1:]
			k.init(to.state, s.Backends[i].Addr)
		}
		k.update = b.updates
		k.nextCondition = conditions(sel, &s.Backends[i])
		if s.Backends[i].Local {
			k.nextCondition |= onNode
		}
		if to.limit > 0 {
			k.nextCondition |= limited
		}
		if k.nextCondition&eligible != 0 {
			to.eligibles++
		}
		to.backends[i] = k
	}
	b.Health().leaveOut(policies, to.backends)
	startSlowly(policies, to.backends)
	to.state.ejected = 0
	for _, k := range to.backends {
		if k.nextCondition&(eligible|leftOut) != 0 && k.isEjected() {
			to.state.ejected++
		}
	}
	scheduler, _ := lb.ParseScheduler(policies.Scheduler)
	for _, k := range to.backends {
		if scheduler.Algorithm == lb.LeastConnections && k.nextCondition&eligible != 0 {
			k.nextCondition |= counted
		}
		k.condition.Or(k.nextCondition)
		for in := range to.rings {
			if k.nextCondition&conditionOf(lb.Set(in)) != 0 {
				to.rings[in] = append(to.rings[in], k)
			}
		}
	}
	for _, r := range to.rings {
		r.sort()
	}
	to.method = methodOf(s, scheduler, to)
	for in := range lb.Sets {
		// A Pick between the two is not counted: one at the moment of a change may
		// repeat a backend.
		first := &to.state.positions[in].first
		first.Store(from.resume(in, first.Load(), to))
	}
	return to
}

// finish takes from backends what the change from another service takes from them, once the
// snapshot that has s is current.
func (b *Balancer) finish(s, from *service) {
	s.state.dropDrained(b.updates)
	lost := false
	for _, k := range from.backends {
		if k.update != b.updates {
			b.Health().leaves(k)
			k.condition.Store(0)
			s.state.leaves(k)
			lost = true
		}
	}
	for _, k := range s.backends {
		if k.nextCondition&stays != 0 && k.left.Load() != 0 {
			k.left.Store(0)
		}
		if k.condition.Swap(k.nextCondition)&(eligible|leftOut) != 0 && k.nextCondition&(eligible|leftOut) == 0 {
			lost = true
		}
	}
	switch {
	case s.affinityTimeout == 0 && from.affinityTimeout > 0:
		s.state.deleteAll()
	case lost:
		s.state.dropIneligible()
	}
	s.state.serveQueue()
}

// drop lets go of a service that is no longer in the table. Choices that are
// still in flight refer to its state, so its affinity memory is freed here.
func (b *Balancer) drop(s *service) {
	for _, k := range s.backends {
		b.Health().leaves(k)
		k.condition.Store(0)
	}
	s.state.deleteAll()
	s.state.forgetConversations()
	b.Counters().untime(s.state)
	s.state.serveQueue() // their Pick says why there is no backend
}
