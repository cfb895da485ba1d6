package lb

import (
	"cmp"
	"sync"
	"sync/atomic"

	"github.com/sluice-lb/sluice/affinity"
)

// Where each backend of a service port has as many connections as it may (Policies.MaxEndpointConnections), clients
// wait in a queue, which all goroutines share: who ends a connection gives its place, in the same step, to the client
// that came first, so that none that comes later is served before.

// manyPending is how many clients of a service port wait at the same time unless it requests otherwise, and queueTime
// how long they do, in ns.
const (
	manyPending = 1024
	queueTime   = int64(5e9)
)

// Waiter is a client's place in such a queue. The zero Waiter with Wake set is ready to use, and again after Turn or
// Leave. It is for one goroutine, and must not be copied.
type Waiter struct {
	// Wake is called when the turn of the client has come, by any goroutine, and also within Queue. It must neither
	// block nor call the Balancer. The turn may be over by the time that is noticed: see Served.
	Wake func()

	of         *state // whose queue it is in, or was served from; nil: neither
	from       set
	flow       *Flow
	since      int64 // when it came
	next, prev *Waiter

	// Guarded by state.queue.mu.
	waits, served bool
	choice        Choice
}

// queue is that of a service port: a list for each set, since backends of one may have room that are not of the other.
type queue struct {
	waiting [sets]atomic.Int64
	mu      sync.Mutex // guards the following, and those who wait
	lists   [sets]struct{ first, last *Waiter }
}

// Queue has a client wait, for which Pick has returned ErrFull, and returns for how long, in ns. f must not change until
// Turn or Leave. The error is ErrQueueFull if as many wait as may, which is counted, or ErrNoService. now is on the
// clock of Flow.Now.
func (b *Balancer) Queue(w *Waiter, f *Flow, now int64) (wait int64, err error) {
	s, from, ok := b.stateOf(f)
	if !ok {
		return 0, ErrNoService // since the Pick
	}
	p := s.policies.Load()
	if s.queue.length() >= int64(max(0, cmp.Or(p.MaxPendingConnections, manyPending))) {
		s.limited.Add(1)
		return 0, ErrQueueFull
	}
	w.of, w.from, w.flow, w.since = s, from, f, now
	s.queue.add(w)
	s.serveQueue() // there may be room since the Pick
	return cmp.Or(p.QueueTimeout, queueTime), nil
}

// ResumeQueue has a client wait that came at another Balancer, at a time on the clock of Flow.Now. None gets a turn
// before Resumed. False: no service has the frontend.
func (b *Balancer) ResumeQueue(w *Waiter, f *Flow, since int64) bool {
	s, from, ok := b.stateOf(f)
	if ok {
		b.resuming.Store(true)
		w.of, w.from, w.flow, w.since = s, from, f, since
		s.queue.add(w)
	}
	return ok
}

// Resumed says that all choices of another Balancer have been resumed, so that it is known which backends have room.
func (b *Balancer) Resumed() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.resuming.Store(false)
	snap := b.load()
	for _, slot := range snap.table.slots {
		snap.service(slot).state.serveQueue()
	}
}

// stateOf returns the state of the service that f is for, and the set that f gets. False: none has the frontend, or the
// client may not ask any more.
func (b *Balancer) stateOf(f *Flow) (s *state, from set, ok bool) {
	snap := b.load()
	at, ok := snap.table.index.find(&f.Frontend)
	if !ok {
		return nil, 0, false
	}
	if at.ruled {
		from, ok = snap.table.admit(at, f)
	}
	return snap.service(at.slot).state, from, ok
}

// Served reports whether the turn of the client has come.
func (w *Waiter) Served() bool {
	if w.of == nil {
		return false
	}
	w.of.queue.mu.Lock()
	defer w.of.queue.mu.Unlock()
	return w.served
}

// Turn ends the wait of a client that is served, and returns the choice that was made for it. Not valid: there is no
// backend any more, and a Pick says why.
func (w *Waiter) Turn() (c Choice) {
	if w.of == nil {
		return c
	}
	q := &w.of.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.waits {
		q.remove(w)
	}
	c = w.choice
	w.of, w.flow, w.served, w.choice = nil, nil, false, Choice{}
	return c
}

// Leave gives the place back, or the choice. It may be called for a Waiter that does not wait.
func (w *Waiter) Leave() { w.Turn().Done(nil) }

// Since returns when the client came.
func (w *Waiter) Since() int64 { return w.since }

// TimedOut counts a client that has waited for long enough, and is refused.
func (w *Waiter) TimedOut() { w.of.limited.Add(1) }

// serveQueue gives clients their turns, the first that came first, for as long as there is room.
func (s *state) serveQueue() {
	q := &s.queue
	if q.length() == 0 || s.balancer.resuming.Load() {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	var full [sets]bool
	for {
		w := q.oldest(&full)
		if w == nil {
			return
		}
		choice, err := s.balancer.pick(w.flow, true)
		if err == ErrFull {
			full[w.from] = true
			continue
		}
		q.remove(w)
		w.served, w.choice = true, choice
		w.Wake()
	}
}

func (q *queue) length() (n int64) {
	for in := range q.waiting {
		n += q.waiting[in].Load()
	}
	return n
}

// oldest returns the one that came first of the sets that are not full; nil: there is none.
func (q *queue) oldest(full *[sets]bool) (w *Waiter) {
	for in := range q.lists {
		if first := q.lists[in].first; first != nil && !full[in] && (w == nil || first.since < w.since) {
			w = first
		}
	}
	return w
}

// add puts w behind those that came before, which are all but for clients that wait again after a failed attempt, or
// were at another Balancer.
func (q *queue) add(w *Waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting[w.from].Add(1)
	list := &q.lists[w.from]
	before := list.last
	for before != nil && before.since > w.since {
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
}

// remove takes w out, which waits. The caller holds mu.
func (q *queue) remove(w *Waiter) {
	q.waiting[w.from].Add(-1)
	list := &q.lists[w.from]
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

// pickWithin chooses as Pick does where backends may have limit connections at most: where the one whose turn it is has
// so many, one of the others, those that have failed before only if no other has room. The client is out of turn unless
// queued if others wait.
func (s *service) pickWithin(from set, f *Flow, queued bool) (Choice, error) {
	if !queued && s.state.queue.waiting[from].Load() > 0 {
		return Choice{}, ErrFull
	}
	sticky := s.affinityTimeout > 0 && f.Client.IsValid()
	if sticky {
		s.state.choosing.Lock()
		defer s.state.choosing.Unlock()
		if k := s.remembered(from, f); k != nil && k.beginWithin(s.limit) {
			return Choice{k}, nil
		}
	}
	k := s.next(from, f)
	if !k.beginWithin(s.limit) {
		if k = s.withRoom(from, f); k == nil {
			return Choice{}, ErrFull
		}
	}
	if sticky {
		s.state.affinity.Put(affinity.KeyOf(f.Client), k, f.Now)
	}
	return Choice{k}, nil
}

// withRoom begins a connection at the next backend of a set that may have one more; nil: there is none.
func (s *service) withRoom(from set, f *Flow) *backend {
	r := s.rings[from]
	start := s.state.positions[from].first.Load()
	for _, tried := range [...]bool{false, true} {
		for i := range uint64(len(r)) {
			if k := r.at(start + i); f.Tried.has(k) == tried && k.beginWithin(s.limit) {
				return k
			}
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
