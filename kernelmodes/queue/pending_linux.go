package queue

import (
	"container/heap"
	"sync"
	"time"

	"github.com/sluice-lb/sluice/internal/netfilter/nfqueue"
	"github.com/sluice-lb/sluice/lb"
)

// Where each endpoint has as many connections as it may, the first packet of a flow stays in the kernel, and its client
// has a place in the queue of its Service (lb.Waiter), which it shares with clients in user space: who ends a
// connection gives its place to the one that came first. A client of TCP that has waited for long enough, or for which
// there is no place, is reset. One that has left meanwhile says nothing, but does not send its first packet again: then
// that is dropped.

// firstAgain is how long a client is taken to wait that has not sent its first packet again. It does so after a second,
// by RFC 6298, or three, and after twice as long each time.
const firstAgain = int64(4 * time.Second)

// leaves returns when a client is taken to have left unless it sends again: when of its next two packets neither has
// come, of which one may be lost.
func (w *waiting) leaves() int64 { return w.came + 4*(w.heard-w.came) + firstAgain }

// pending are the flows that wait so, the first that is to be looked at before the others.
type pending []*waiting

func (p pending) Len() int           { return len(p) }
func (p pending) Less(i, k int) bool { return p[i].due < p[k].due }
func (p pending) Swap(i, k int) {
	p[i], p[k] = p[k], p[i]
	p[i].at, p[k].at = i, k
}

func (p *pending) Push(w any) {
	w.(*waiting).at = len(*p)
	*p = append(*p, w.(*waiting))
}

func (p *pending) Pop() any {
	last := len(*p) - 1
	w := (*p)[last]
	(*p)[last], w.at = nil, -1
	*p = (*p)[:last]
	return w
}

// turns are the flows whose turn has come. Its lock is a leaf: the Balancer says so while it holds others.
type turns struct {
	mu   sync.Mutex
	list []*waiting
	come chan struct{} // has a value when there may be some, or another is the first of those that wait
}

func (t *turns) add(w *waiting) {
	t.mu.Lock()
	t.list = append(t.list, w)
	t.mu.Unlock()
	notify(t.come)
}

func (t *turns) take() (some []*waiting) {
	t.mu.Lock()
	defer t.mu.Unlock()
	some, t.list = t.list, nil
	return some
}

// pend has a flow wait for which no endpoint has room, and returns what becomes of its packet. What the flow has is
// given back unless it waits.
func (s *Server) pend(k *flowKey, f *lb.Flow, p *nfqueue.Packet, one *flow) (nfqueue.Action, uint32) {
	h, mark := &s.holding, p.Mark&^s.Ask.Mask
	err := s.admit(f, one)
	if err == nil {
		if err = s.stay(k, f, p, one, mark); err == nil {
			return nfqueue.Hold, mark
		}
	}
	one.end(k)
	switch {
	case err == lb.ErrNoService: //nolint:errorlint // it is never wrapped
		s.no.Add(1)
		return nfqueue.Accept, mark
	case err == lb.ErrQueueFull: //nolint:errorlint // so
		h.full.Add(1)
	}
	s.limited.Add(1)
	return s.refusal(k, p.Tag, err, mark)
}

// stay takes a place for a flow. The error is ErrFull where no more packets may stay, of it or of any.
func (s *Server) stay(k *flowKey, f *lb.Flow, p *nfqueue.Packet, one *flow, mark uint32) error {
	h, id := &s.holding, one.admission.Service()
	h.mu.Lock()
	defer h.mu.Unlock()
	if lack := h.room(&s.Shares, id, k, p); lack != enough {
		if h.lacks.add(lack); lack == ofService {
			s.Balancer.ExceedsShare(id, 1)
		}
		s.Balancer.RefuseFull(f)
		return lb.ErrFull
	}
	w := &waiting{key: *k, flow: *f, id: id, mark: mark, tag: p.Tag, ticket: p.Ticket, one: *one}
	w.turn.Wake = func() { h.turns.add(w) }
	if _, err := s.Balancer.Queue(&w.turn, &w.flow, f.Now); err != nil {
		return err
	}
	_, w.until = w.turn.Since()
	w.came, w.heard = f.Now, f.Now
	w.due = min(w.until, w.leaves())
	h.stays(w)
	if heap.Push(&h.pending, w); w.at == 0 {
		notify(h.turns.come)
	}
	return nil
}

// takeTurns lets those packets go whose turn has come, and those that have waited for long enough, and returns when to
// call it again at the latest; 0: none is left.
func (s *Server) takeTurns() (next int64) {
	h := &s.holding
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range h.turns.take() {
		if w.at >= 0 { // else it has had its turn, or has waited for too long
			s.takeTurn(w)
		}
	}
	for now := s.Now(); len(h.pending) > 0; {
		switch w := h.pending[0]; {
		case w.due > now:
			return w.due
		case w.turn.Served():
			s.takeTurn(w)
		case w.until > now && w.leaves() > now: // it has sent again
			w.due = min(w.until, w.leaves())
			heap.Fix(&h.pending, 0)
		case w.until > now:
			s.hasLeft(w)
		default:
			w.turn.TimedOut()
			h.expired.Add(1)
			s.limited.Add(1)
			action, number := s.refusal(&w.key, w.tag, lb.ErrQueueFull, 0)
			s.leave(w, action, number)
		}
	}
	return 0
}

// takeTurn lets a packet go whose turn has come. Without a choice the Balancer is asked again: the endpoints are
// others, or there is no limit any more.
func (s *Server) takeTurn(w *waiting) {
	if w.flow.Now = s.Now(); w.leaves() <= w.flow.Now {
		s.hasLeft(w)
		return
	}
	choice := w.turn.Turn()
	var number uint32
	var err error
	if choice.Valid() {
		w.one.choice, w.one.since = choice, w.flow.Now
		number = s.engine(&w.flow).Number(choice.Backend())
	} else if number, err = s.choose(&w.flow, &w.one); full(err) {
		if _, err = s.Balancer.Queue(&w.turn, &w.flow, w.flow.Now); err == nil {
			return // in its place
		}
	}
	one, action := w.one, nfqueue.Accept
	one.held, w.one = true, flow{}
	switch {
	case number != 0 && s.keep(&w.key, &one):
		s.chosen.Add(1)
		s.leave(w, action, number)
		return
	case number != 0:
		one, err = flow{}, lb.ErrServiceLimit
	}
	one.end(&w.key)
	switch {
	case limits(err):
		s.limited.Add(1)
		action, number = s.refusal(&w.key, w.tag, err, 0)
	case waits(err) && s.mayHold(&w.flow):
		action = nfqueue.Drop // its client sends again, and waits for an endpoint
	case err == nil:
		s.unknown.Add(1)
	default:
		s.no.Add(1)
	}
	s.leave(w, action, number)
}

// hasLeft drops the packet of a client that has left. If it has not, it sends again, and waits anew.
func (s *Server) hasLeft(w *waiting) {
	s.holding.left.Add(1)
	s.leave(w, nfqueue.Drop, 0)
}

// leave ends the wait of a packet, and what its flow has still. The caller holds h.mu.
func (s *Server) leave(w *waiting, action nfqueue.Action, number uint32) {
	h := &s.holding
	heap.Remove(&h.pending, w.at)
	h.goes(w)
	w.turn.Leave()
	w.one.end(&w.key)
	s.letGo(w, action, number)
}
