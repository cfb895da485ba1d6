package queue

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-lb/sluice/internal/netfilter/nfqueue"
	"github.com/sluice-lb/sluice/internal/shares"
	"github.com/sluice-lb/sluice/lb"
)

// While a Service has no endpoint that requests it (lb.Policies.Hold) the first packet of a flow stays in the
// kernel, in a queue of its own: the kernel looks through all that is in a queue for the packet of a verdict. It
// goes on when the Balancer has an endpoint and the kernel has its number, of which [Server.Wake] says, those first
// that came first; and without one when it has waited for long enough, so that rules refuse it. Those for which no
// endpoint has room stay there, too ([Server.pend]).

const (
	// manyHeld is how many packets stay at the same time, of all Services, and longestHeld how many bytes one may have.
	manyHeld    = 4096
	longestHeld = 2048
)

// holding has the packets that stay.
type holding struct {
	mu      sync.Mutex
	list    []*waiting // that have no endpoint, as they came
	pending pending
	by      map[flowKey]*waiting
	tally   tally
	next    int64 // when the first of the list has waited for long enough

	ended                atomic.Bool
	held                 atomic.Int64
	holds, full, expired atomic.Uint64
	left                 atomic.Uint64
	lacks                lacks

	wake, stop chan struct{}
	turns      turns
	all        sync.WaitGroup
}

// waiting is a flow whose first packet stays.
type waiting struct {
	key    flowKey
	flow   lb.Flow
	id     lb.ID  // of the Service
	mark   uint32 // of the packet
	tag    uint32 // so, of SCTP
	ticket nfqueue.Ticket
	until  int64

	place lb.Held // without an endpoint

	// Where none has room.
	turn lb.Waiter
	one  flow
	at   int   // in pending; -1: it is not there any more
	due  int64 // when it is looked at

	came, heard int64 // when its client sent its first packet, for the first time and for the last
}

// startHolding begins to let packets go.
func (s *Server) startHolding() {
	h := &s.holding
	h.wake, h.stop, h.turns.come = make(chan struct{}, 1), make(chan struct{}), make(chan struct{}, 1)
	h.ended.Store(false)
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
	h.ended.Store(true)
	for _, w := range h.list {
		s.letGo(w, nfqueue.Drop, 0)
	}
	for len(h.pending) > 0 {
		s.leave(h.pending[0], nfqueue.Drop, 0)
	}
	h.list, h.by, h.tally = nil, nil, tally{}
}

// Wake says that the Balancer, or the engines, have endpoints now that they did not have. Any goroutine may call it.
func (s *Server) Wake() {
	if s.holding.held.Load() > 0 {
		notify(s.holding.wake)
	}
}

// waits reports whether the first packet of a flow stays already: the client has sent another, and so waits still.
func (s *Server) waits(k *flowKey, now int64) bool {
	h := &s.holding
	if h.held.Load() == 0 {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	w := h.by[*k]
	if w != nil {
		w.heard = now
	}
	return w != nil
}

// mayHold reports whether a packet may stay for which there is no endpoint.
func (s *Server) mayHold(f *lb.Flow) bool {
	return !s.holding.ended.Load() && s.Balancer.Policies(f.Frontend).Hold > 0
}

// hold has a packet stay for which there is no endpoint, or none that the kernel has yet, which it has soon unless
// there are too many. False: its Service does not request that, or too many do.
func (s *Server) hold(k *flowKey, f *lb.Flow, p *nfqueue.Packet, soon bool) bool {
	h := &s.holding
	place, wait, full := s.Balancer.Hold(f, f.Now)
	if soon {
		wait = min(wait, int64(time.Second))
	}
	if full {
		h.full.Add(1)
	}
	if !place.Valid() {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	id := place.Service()
	if lack := h.room(&s.Shares, id, k, p); lack != enough {
		if h.lacks.add(lack); lack == ofService {
			s.Balancer.ExceedsShare(id, 1)
		}
		place.Refused()
		place.End()
		return false
	}
	w := &waiting{key: *k, flow: *f, id: id, mark: p.Mark &^ s.Ask.Mask, tag: p.Tag, ticket: p.Ticket,
		place: place, until: f.Now + wait}
	w.flow.Tried = nil
	h.list = append(h.list, w)
	h.stays(w)
	if len(h.list) == 1 || w.until < h.next || s.Balancer.Ends(f) { // or since the Pick, too soon for Wake to see it
		notify(h.wake)
	}
	return true
}

// room returns what there is not enough of for one more packet to stay. The caller holds mu.
func (h *holding) room(of *shares.Shares, id lb.ID, k *flowKey, p *nfqueue.Packet) lack {
	if h.ended.Load() || p.Bytes > longestHeld {
		return room
	}
	return h.tally.lacks(of, nameOf(id), k.host(), manyHeld-int64(len(h.by)))
}

// stays counts a packet that stays. The caller holds mu.
func (h *holding) stays(w *waiting) {
	if h.by == nil {
		h.by = make(map[flowKey]*waiting)
	}
	h.by[w.key] = w
	h.tally.add(nameOf(w.id), w.key.host(), 1)
	h.holds.Add(1)
	h.held.Add(1)
}

// goes ends that.
func (h *holding) goes(w *waiting) {
	delete(h.by, w.key)
	h.tally.add(nameOf(w.id), w.key.host(), -1)
}

// holdOn lets packets go until the server ends.
func (s *Server) holdOn() {
	h := &s.holding
	timer := time.NewTimer(0)
	defer timer.Stop()
	var first, firstPending int64
	for {
		select {
		case <-h.stop:
			return
		case <-h.wake:
			first = s.release()
		case <-h.turns.come:
			firstPending = s.takeTurns()
		case <-timer.C:
			first, firstPending = s.release(), s.takeTurns()
		}
		if first == 0 && firstPending == 0 {
			timer.Stop()
			continue
		}
		next := min(cmp.Or(first, firstPending), cmp.Or(firstPending, first))
		timer.Reset(time.Duration(max(0, next-s.Now())))
	}
}

// release lets those packets go whose wait is over, and returns when to call it again at the latest; 0: none is left.
func (s *Server) release() (next int64) {
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
			h.goes(w)
		} else if next == 0 || w.until < next {
			next = w.until
		}
		return over
	})
	h.next = next
	return next
}

// over lets a packet go if there is an endpoint for it.
func (s *Server) over(w *waiting) bool {
	w.flow.Now = s.Now()
	if !s.Balancer.Ends(&w.flow) {
		return false
	}
	one := flow{held: true}
	number, err := s.choose(&w.flow, &one)
	one.why = lb.ByHold
	switch {
	case number != 0:
		action, count := nfqueue.Accept, &s.chosen
		if !s.keep(&w.key, &one) {
			count = &s.limited
			action, number = s.refusal(&w.key, w.tag, lb.ErrServiceLimit, 0)
		}
		count.Add(1)
		s.letGo(w, action, number)
		return true
	case waits(err):
		one.end(&w.key) // the kernel has no number yet, or it has gone again
		return false
	}
	one.end(&w.key)
	action := nfqueue.Accept
	if limits(err) {
		s.limited.Add(1)
		action, number = s.refusal(&w.key, w.tag, err, 0)
	}
	s.letGo(w, action, number)
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
	if w.place.Valid() {
		w.place.End()
	}
	s.holding.held.Add(-1)
	if err := w.ticket.Decide(nfqueue.Verdict{Action: action, Mark: w.mark | number}); err != nil {
		s.undecided.Add(1)
	}
}
