package balancer

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sluice-lb/sluice/affinity"
	"github.com/sluice-lb/sluice/lb"
)

// Where each backend of a service port has as many connections as it may (Policies.MaxEndpointConnections), clients
// wait in a queue, which all goroutines share: who ends a connection gives its place to the client that came first. One
// that has failed at a backend waits for another: it does not keep those from that backend that came later.

// manyPending is how many clients of a service port wait at the same time unless it requests otherwise, and queueTime
// how long they do, in ns.
const (
	manyPending = 1024
	queueTime   = int64(5e9)
)

// Waiter is a client's place in such a queue. The zero Waiter with Wake set is ready to use, and again after Leave. It
// is for one goroutine, and must not be copied.
type Waiter struct {
	// Wake is called when the turn of the client has come, by any goroutine, and also within Join. It must neither
	// block nor call the Balancer. The turn may be over by the time that is noticed: see Served.
	Wake func()

	of         *state // whose queue it is in, or was served from; nil: neither
	list       whose
	flow       *Flow
	since      int64 // when it came first; 0: it has not waited since Leave
	until      int64 // when it has waited for long enough; 0: no wait has begun, or a Turn without a choice ended it
	next, prev *Waiter

	// Guarded by state.queue.mu.
	waits, served bool
	choice        Choice
}

// whose says which clients a list of a queue has: those of a set, since backends of one may have room that are not of
// the other, and of these those that have failed at a backend apart.
type whose struct {
	from  lb.Set
	tried int // 0: they have not, 1: they have
}

// queue is that of a service port.
type queue struct {
	fresh   [lb.Sets]atomic.Int64 // how many wait that have not failed
	waiting atomic.Int64          // how many wait
	mu      sync.Mutex            // guards the following, and those who wait
	lists   [lb.Sets][2]struct{ first, last *Waiter }
}

// line returns the queue, which it makes unless there is one.
func (s *state) line() *queue {
	if q := s.queue.Load(); q != nil {
		return q
	}
	s.queue.CompareAndSwap(nil, new(queue))
	return s.queue.Load()
}

// queued returns how many clients wait.
func (s *state) queued() int64 {
	if q := s.queue.Load(); q != nil {
		return q.waiting.Load()
	}
	return 0
}

// Join has a client wait, for which Pick has returned ErrFull, and returns for how long, in ns. f must not change
// until Turn or Leave. One that has waited before keeps its place, and its time if it had a choice since. The error is
// ErrQueueFull if as many wait as may, which is counted, or ErrNoService. now is on the clock of Flow.Now.
func (qs Queues) Join(w *Waiter, f *Flow, now int64) (wait int64, err error) {
	s, from, ok := qs.stateOf(f)
	if !ok {
		return 0, ErrNoService // since the Pick
	}
	p, most := s.policies.Load(), int64(math.MaxInt64)
	if w.since == 0 {
		if w.since = now; !qs.b.resuming.Load() {
			most = int64(max(0, cmp.Or(p.MaxPendingConnections, manyPending)))
		}
	}
	if w.until == 0 {
		w.until = now + cmp.Or(p.QueueTimeout, queueTime)
	}
	w.waitAt(s, from, f)
	first, ok := s.line().add(w, !qs.b.resuming.Load(), most)
	if !ok {
		w.Leave()
		s.limited.Add(1)
		return 0, ErrQueueFull
	}
	if first {
		s.serveQueue() // there may be room since the Pick, which no other client has got
	}
	return max(0, w.until-now), nil
}

func (w *Waiter) waitAt(s *state, from lb.Set, f *Flow) {
	w.of, w.flow, w.list = s, f, whose{from: from}
	if !f.Tried.none() {
		w.list.tried = 1
	}
}

// RefuseFull counts a client, for which Pick has returned ErrFull, that cannot wait.
func (qs Queues) RefuseFull(f *Flow) {
	if s, _, ok := qs.stateOf(f); ok {
		s.limited.Add(1)
	}
}

// Resuming says that choices of another Balancer are to be resumed: until Resumed it is not known which backends have
// room, and clients of those that are limited wait.
func (qs Queues) Resuming() { qs.b.resuming.Store(true) }

// Rejoin has a client wait that came at another Balancer, at a time on the clock of Flow.Now, until another. None
// gets a turn before Resumed. False: no service has the frontend.
func (qs Queues) Rejoin(w *Waiter, f *Flow, since, until int64) bool {
	s, from, ok := qs.stateOf(f)
	if !ok {
		return false
	}
	qs.Resuming()
	w.since, w.until = since, until
	w.waitAt(s, from, f)
	s.line().add(w, false, math.MaxInt64)
	qs.b.mu.Lock()
	defer qs.b.mu.Unlock()
	if qs.b.resumed == nil {
		qs.b.resumed = make(map[*state]struct{})
	}
	qs.b.resumed[s] = struct{}{}
	return true
}

// Resumed ends Resuming.
func (qs Queues) Resumed() {
	qs.b.mu.Lock()
	defer qs.b.mu.Unlock()
	all := qs.b.resumed // those included that the table does not have any more
	if all == nil {
		all = make(map[*state]struct{})
	}
	snap := qs.b.load()
	qs.b.resuming.Store(false)
	for _, slot := range snap.table.Slots() {
		if s := snap.service(slot).state; s.queued() > 0 {
			all[s] = struct{}{}
		}
	}
	for s := range all {
		s.line().sort()
		s.serveQueue()
	}
	qs.b.resumed = nil
}

// stateOf returns the state of the service that f is for, and the set that f gets. False: none has the frontend, or the
// client may not ask any more.
func (qs Queues) stateOf(f *Flow) (s *state, from lb.Set, ok bool) {
	snap := qs.b.load()
	at, ok := snap.table.Find(&f.Frontend)
	if !ok {
		return nil, 0, false
	}
	if at.Ruled {
		from, ok = snap.table.Admit(at, &f.Frontend, f.Client)
	}
	return snap.service(at.Slot).state, from, ok
}

// Served reports whether the turn of the client has come.
func (w *Waiter) Served() bool {
	if w.of == nil {
		return false
	}
	q := w.of.line()
	q.mu.Lock()
	defer q.mu.Unlock()
	return w.served
}

// Turn ends the wait of a client that is served, and returns the choice that was made for it. Not valid: there is no
// backend any more, or the frontend is another service's, and a Pick says what to do.
func (w *Waiter) Turn() (c Choice) {
	if w.of == nil {
		return c
	}
	q := w.of.line()
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.waits {
		q.remove(w)
	}
	if c = w.choice; !c.Valid() {
		w.until = 0 // what comes now, as being held, is no wait in the queue
	}
	w.of, w.flow, w.served, w.choice = nil, nil, false, Choice{}
	return c
}

// Leave gives the place back, or the choice. It may be called for a Waiter that does not wait.
func (w *Waiter) Leave() {
	w.Turn().Done(nil)
	w.since, w.until = 0, 0
}

// Since returns when the client came, and until when it waits; 0: it has not waited.
func (w *Waiter) Since() (since, until int64) { return w.since, w.until }

// TimedOut counts a client that waits, and has waited for long enough: it is refused.
func (w *Waiter) TimedOut() { w.of.limited.Add(1) }

// serveQueue gives clients their turns for as long as there is room. It takes time linear in the backends, and so is
// for changes of them.
func (s *state) serveQueue() {
	q := s.queue.Load()
	if q == nil || q.waiting.Load() == 0 || s.balancer.resuming.Load() {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	all := q.inOrder(nil)
	for {
		w := all.next()
		if w == nil {
			return
		}
		if at := w.service(); at == nil || at.limit == 0 || len(at.rings[w.list.from]) == 0 {
			q.serve(w, Choice{})
		} else if c, err := at.pickWithin(w.list.from, w.flow, true); err == nil {
			q.serve(w, c)
		} else if w.list.tried == 0 {
			all.at[w.list.from][0] = nil // where one has no room, none of the list has
		}
	}
}

// servePlace gives the place of a connection that has ended at k to the client that came first.
func (s *state) servePlace(k *backend) {
	q := s.queue.Load()
	if q == nil || q.waiting.Load() == 0 || s.balancer.resuming.Load() {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	all := q.inOrder(k)
	for {
		w := all.next()
		if w == nil {
			return
		}
		at := w.service()
		if at == nil || at.limit == 0 {
			q.serve(w, Choice{})
			continue
		}
		if !w.takes(k, at) {
			continue
		}
		if k.beginWithin(at.limit) {
			at.stick(k, w.flow)
			q.serve(w, Choice{k})
		}
		return
	}
}

// service returns that whose backends w waits for; nil: the frontend is that of another, or of none.
func (w *Waiter) service() *service {
	snap := w.of.balancer.load()
	at, ok := snap.table.Find(&w.flow.Frontend)
	if !ok {
		return nil
	}
	s := snap.service(at.Slot)
	from := lb.ClusterSet
	if at.Ruled {
		from, ok = snap.table.Admit(at, &w.flow.Frontend, w.flow.Client)
	}
	if !ok || s.state != w.of || from != w.list.from {
		return nil
	}
	return s
}

// serve ends the wait of w. The caller holds mu.
func (q *queue) serve(w *Waiter, c Choice) {
	q.remove(w)
	w.served, w.choice = true, c
	w.Wake()
}

// inOrder goes through those that wait, in the order in which they came.
type inOrder struct {
	at   [lb.Sets][2]*Waiter // the next one of each list; nil: none
	left int                 // so many more of those that have failed are looked at
}

// manyTurns bounds how many of those that have failed are looked at, while the queue is locked.
const manyTurns = 64

// inOrder begins with the first of the lists that k is for, or of all if k is nil.
func (q *queue) inOrder(k *backend) (t inOrder) {
	for in := range q.lists {
		if k != nil && !k.is(conditionOf(lb.Set(in))) {
			continue
		}
		for tried := range q.lists[in] {
			t.at[in][tried] = q.lists[in][tried].first
		}
	}
	t.left = manyTurns
	return t
}

// next returns the next one, which may be served. nil: there is none.
func (t *inOrder) next() *Waiter {
	var first **Waiter
	for in := range t.at {
		for tried := range t.at[in] {
			at := &t.at[in][tried]
			if *at == nil || tried == 1 && t.left == 0 {
				continue
			}
			if first == nil || (*at).since < (*first).since {
				first = at
			}
		}
	}
	if first == nil {
		return nil
	}
	w := *first
	if *first = w.next; w.list.tried == 1 {
		t.left--
	}
	return w
}

// takes reports whether k is a backend of its service for w: one that it has not failed at, unless it has failed at
// all.
func (w *Waiter) takes(k *backend, s *service) bool {
	if !w.flow.Tried.has(k) {
		return true
	}
	r := s.rings[w.list.from]
	return len(r) <= maxTried && !slices.ContainsFunc(r, func(k *backend) bool { return !w.flow.Tried.has(k) })
}

// add puts w behind those that came before, or, if it is not to be sorted, at the end. first says whether a
// place that is free may be for w and for none of those before it; not ok: as many as most wait.
func (q *queue) add(w *Waiter, sorted bool, most int64) (first, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.waiting.Load() >= most {
		return false, false
	}
	q.count(w, 1)
	list := &q.lists[w.list.from][w.list.tried]
	before := list.last
	for sorted && before != nil && before.since > w.since { // it has waited before
		before = before.prev
	}
	if w.prev = before; before != nil {
		w.next, before.next = before.next, w
	} else {
		w.next, list.first = list.first, w
	}
	if w.next != nil {
		w.next.prev = w
	} else {
		list.last = w
	}
	w.waits = true
	return w.prev == nil && w.next == nil || w.list.tried == 1, true
}

func (q *queue) count(w *Waiter, n int64) {
	q.waiting.Add(n)
	if w.list.tried == 0 {
		q.fresh[w.list.from].Add(n)
	}
}

// remove takes w out, which waits. The caller holds mu.
func (q *queue) remove(w *Waiter) {
	q.count(w, -1)
	list := &q.lists[w.list.from][w.list.tried]
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		list.first = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	} else {
		list.last = w.prev
	}
	w.next, w.prev, w.waits = nil, nil, false
}

// sort puts all into the order in which they came.
func (q *queue) sort() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for in := range q.lists {
		for tried := range q.lists[in] {
			list := &q.lists[in][tried]
			var all []*Waiter
			for w := list.first; w != nil; w = w.next {
				all = append(all, w)
			}
			slices.SortStableFunc(all, func(a, b *Waiter) int { return cmp.Compare(a.since, b.since) })
			list.first, list.last = nil, nil
			for _, w := range all {
				if w.prev, w.next = list.last, nil; w.prev != nil {
					w.prev.next = w
				} else {
					list.first = w
				}
				list.last = w
			}
		}
	}
}

// pickWithin chooses as Pick does where backends may have limit connections at most: where the one whose turn it is has
// so many, the next that has fewer. One that the client has failed at is chosen only if all are such. The client is out
// of turn unless queued if others wait.
func (s *service) pickWithin(from lb.Set, f *Flow, queued bool) (Choice, error) {
	if !queued && (s.state.line().fresh[from].Load() > 0 || s.state.balancer.resuming.Load()) {
		return Choice{}, ErrFull
	}
	sticky := s.affinityTimeout > 0 && f.Client.IsValid()
	if sticky {
		choosing := &s.state.sticky.Load().choosing
		choosing.Lock()
		defer choosing.Unlock()
		if k := s.remembered(from, f); k != nil && k.beginWithin(s.limit) {
			return Choice{k}, nil
		}
	}
	k := s.next(from, f)
	if !k.beginWithin(s.limit) {
		if k = s.withRoom(from, f, k); k == nil {
			return Choice{}, ErrFull
		}
		f.because(lb.ByRoom)
	}
	s.stick(k, f)
	return Choice{k}, nil
}

// stick has the client of f stay with k, if the service has affinity.
func (s *service) stick(k *backend, f *Flow) {
	if s.affinityTimeout > 0 && f.Client.IsValid() {
		s.state.sticky.Load().Put(affinity.KeyOf(f.Client), k, f.Now)
	}
}

// withRoom begins a connection at the next backend of a set behind one that has no room; nil: there is none.
func (s *service) withRoom(from lb.Set, f *Flow, full *backend) *backend {
	r := s.rings[from]
	at := slices.Index(r, full)
	all := f.Tried.has(full) // next gives one that has failed only if all have
	for i := range r {
		k := r[(at+1+i)%len(r)]
		if (all || !f.Tried.has(k)) && k.beginWithin(s.limit) {
			return k
		}
	}
	return nil
}

// beginWithin is begin for a backend that has less than limit connections. It reports whether it has.
func (b *backend) beginWithin(limit uint64) bool {
	for {
		n := b.counter.Load()
		if n>>inFlightAt >= limit {
			return false
		}
		if b.counter.CompareAndSwap(n, n+oneMore+1) {
			return true
		}
	}
}
