package queue

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-lb/sluice/internal/netfilter/nfqueue"
	"github.com/sluice-lb/sluice/lb"
)

// While a Service has no endpoint that requests it (lb.Policies.Hold) the first packet of a flow stays in the kernel's
// queue. It goes on when the Balancer has an endpoint and the kernel has its number, those first that came first; and
// without one when it has waited for long enough, so that rules refuse it.

const (
	// manyHeld is how many packets stay at the same time, of all Services.
	manyHeld = 4096

	// holdEvery is how often it is looked whether there is an endpoint. Balancer and kernel learn of one at different
	// times, and of some in neither way.
	holdEvery = 20 * time.Millisecond
)

// holding has the packets that stay.
type holding struct {
	mu    sync.Mutex
	list  []*waiting // as they came
	by    map[flowKey]bool
	ended bool

	held                 atomic.Int64
	holds, full, expired atomic.Uint64

	wake, stop chan struct{}
	all        sync.WaitGroup
}

// waiting is a flow whose first packet stays.
type waiting struct {
	key    flowKey
	flow   lb.Flow
	mark   uint32 // of the packet
	ticket nfqueue.Ticket
	place  lb.Held
	until  int64
}

// startHolding begins to let packets go.
func (s *Server) startHolding() {
	h := &s.holding
	h.wake, h.stop, h.ended = make(chan struct{}, 1), make(chan struct{}), false
	h.all.Go(s.holdOn)
}

// endHolding drops all packets, and holds no more: the clients send again, to the next process if there is one.
func (s *Server) endHolding() {
	h := &s.holding
	if h.stop == nil {
		return
	}
	close(h.stop)
	h.all.Wait()
	h.stop = nil
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
	for _, w := range h.list {
		s.letGo(w, nfqueue.Drop, 0)
	}
	h.list, h.by = nil, nil
}

// waits reports whether the first packet of a flow stays already: the client has sent another.
func (s *Server) waits(k *flowKey) bool {
	h := &s.holding
	if h.held.Load() == 0 {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.by[*k]
}

// hold has a packet stay for which there is no endpoint. False: its Service does not request that, or too many do.
func (s *Server) hold(k *flowKey, f *lb.Flow, p *nfqueue.Packet) bool {
	h := &s.holding
	place, wait, full := s.Balancer.Hold(f, f.Now)
	if full {
		h.full.Add(1)
	}
	if !place.Valid() {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended || len(h.list) >= manyHeld {
		h.full.Add(1)
		place.Refused()
		place.End()
		return false
	}
	w := &waiting{*k, *f, p.Mark &^ s.Ask.Mask, p.Ticket, place, f.Now + wait}
	w.flow.Tried = nil
	if h.by == nil {
		h.by = make(map[flowKey]bool)
	}
	h.list, h.by[*k] = append(h.list, w), true
	h.holds.Add(1)
	if h.held.Add(1) == 1 {
		notify(h.wake)
	}
	return true
}

// holdOn lets packets go until the server ends.
func (s *Server) holdOn() {
	h := &s.holding
	for {
		if h.held.Load() == 0 {
			select {
			case <-h.stop:
				return
			case <-h.wake:
			}
			continue
		}
		select {
		case <-h.stop:
			return
		case <-time.After(holdEvery):
			s.release()
		}
	}
}

// release lets those packets go whose wait is over.
func (s *Server) release() {
	h := &s.holding
	h.mu.Lock()
	defer h.mu.Unlock()
	var later map[lb.Frontend]bool // those that came later have to wait, too
	h.list = slices.DeleteFunc(h.list, func(w *waiting) bool {
		over := !later[w.flow.Frontend] && s.over(w)
		if !over {
			if later == nil {
				later = make(map[lb.Frontend]bool)
			}
			later[w.flow.Frontend] = true
			over = s.expires(w)
		}
		if over {
			delete(h.by, w.key)
		}
		return over
	})
}

// over lets a packet go if there is an endpoint for it.
func (s *Server) over(w *waiting) bool {
	w.flow.Now = s.Now()
	if !s.Balancer.Ends(&w.flow) {
		return false
	}
	var one flow
	number, err := s.choose(&w.flow, &one)
	switch {
	case number != 0:
		s.chosen.Add(1)
		s.keep(&w.key, &one)
		s.letGo(w, nfqueue.Accept, number)
		return true
	case err == nil, err == lb.ErrNoBackend: //nolint:errorlint // it is never wrapped
		one.end(&w.key) // the kernel has no number yet, or it has gone again
		return false
	}
	one.end(&w.key)
	action := nfqueue.Accept
	if limits(err) {
		s.limited.Add(1)
		action = nfqueue.Drop
	}
	s.letGo(w, action, 0)
	return true
}

// expires lets a packet go that has waited for long enough.
func (s *Server) expires(w *waiting) bool {
	if w.flow.Now = s.Now(); w.flow.Now < w.until {
		return false
	}
	s.holding.expired.Add(1)
	w.place.Refused()
	s.letGo(w, nfqueue.Accept, 0)
	return true
}

// letGo ends the wait of a packet.
func (s *Server) letGo(w *waiting, action nfqueue.Action, number uint32) {
	w.place.End()
	s.holding.held.Add(-1)
	if err := w.ticket.Decide(nfqueue.Verdict{Action: action, Mark: w.mark | number}); err != nil {
		s.undecided.Add(1)
	}
}
