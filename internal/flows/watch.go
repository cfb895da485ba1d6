package flows

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sluice-lb/sluice/internal/netfilter/conntrack"
)

// Entry is all that is read of an entry.
type Entry = conntrack.Entry

// Count is what one end has sent, with the headers of IP.
type Count = conntrack.Count

// EventStats count events.
type EventStats = conntrack.EventStats

// Watch is the one subscription of a process to conntrack. It listens in the network namespace of the thread that
// subscribes first, until the last subscription is closed. The zero value is ready.
//
// Goroutines: one while it listens, which calls all who have subscribed, one after the other.
type Watch struct {
	list atomic.Pointer[[]*Subscription] // replaced as a whole, by who holds mu

	mu     sync.Mutex        // guards the following
	events *conntrack.Events // nil: there is no subscription
	before EventStats        // of sockets that were closed
}

// Subscription passes events on to one who has subscribed. Make it by Watch.Subscribe.
type Subscription struct {
	watch  *Watch
	handle func(*conntrack.Event)
	want   conntrack.Want // guarded by watch.mu

	mu    sync.Mutex // held while handle runs; guards the following
	kinds conntrack.Kinds
}

// Subscribe has handle called for events that Want asks for: none yet. handle must not keep the event, nor call the
// Watch, and should not wait. Events that others want come too, if they are of the same kind.
func (w *Watch) Subscribe(handle func(*conntrack.Event)) (*Subscription, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.events == nil {
		events, err := conntrack.Listen(w.pass)
		if err != nil {
			return nil, err
		}
		w.events = events
	}
	s := &Subscription{watch: w, handle: handle}
	all := append(slices.Clone(w.subscriptions()), s)
	w.list.Store(&all)
	return s, nil
}

// subscriptions returns what must not be changed.
func (w *Watch) subscriptions() []*Subscription {
	if all := w.list.Load(); all != nil {
		return *all
	}
	return nil
}

// pass passes an event on.
func (w *Watch) pass(e *conntrack.Event) {
	for _, s := range w.subscriptions() {
		s.mu.Lock()
		if s.kinds.Have(e.Kind) {
			s.handle(e)
		}
		s.mu.Unlock()
	}
}

// Want says which events are to come, in place of those before, which still do after an error.
func (s *Subscription) Want(want conntrack.Want) error {
	w := s.watch
	w.mu.Lock()
	defer w.mu.Unlock()
	before := s.want
	s.want = want
	if err := w.askLocked(); err != nil {
		s.want = before // so that others can go on asking
		return err
	}
	s.setKinds(want.Kinds)
	return nil
}

func (s *Subscription) setKinds(kinds conntrack.Kinds) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kinds = kinds
}

// askLocked asks the kernel for what all want.
func (w *Watch) askLocked() error {
	if w.events == nil {
		return nil
	}
	var wants []conntrack.Want
	for _, s := range w.subscriptions() {
		wants = append(wants, s.want)
	}
	return w.events.Want(wants...)
}

// Close ends the subscription: handle is not called afterwards.
func (s *Subscription) Close() error {
	w := s.watch
	w.mu.Lock()
	defer w.mu.Unlock()
	s.setKinds(0) // and does not run any more
	others := slices.DeleteFunc(slices.Clone(w.subscriptions()), func(one *Subscription) bool { return one == s })
	w.list.Store(&others)
	if len(others) > 0 || w.events == nil {
		return w.askLocked()
	}
	err := w.events.Close()
	w.before = w.statsLocked()
	w.events = nil
	return err
}

// Stats count the events of all who have subscribed.
func (w *Watch) Stats() EventStats {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.statsLocked()
}

func (w *Watch) statsLocked() EventStats {
	all := w.before
	if w.events != nil {
		now := w.events.Stats()
		all.Handled, all.Lost = all.Handled+now.Handled, all.Lost+now.Lost
	}
	return all
}

// Notify gives a channel with room for one a value, unless it has one.
func Notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Reader reads the table of connections: a conntrack.Conn, or a script's.
type Reader interface {
	Entries(ipv6 bool, begin func(), visit func(*Entry)) error
}

// Each passes the entries of a family to visit that can be those of Services: of a protocol of ours, and answered by
// another end than was asked. It calls begin, which may be nil, before the first, and when it has to start anew. visit
// must not keep the entry. With from nil it asks in the network namespace of the calling thread.
func Each(from Reader, ipv6 bool, begin func(), visit func(*Entry)) error {
	if from == nil {
		from = new(conntrack.Conn)
	}
	return from.Entries(ipv6, begin, func(e *Entry) {
		if e.Protocol != 0 && e.Replies != e.Dst {
			visit(e)
		}
	})
}
