package checks

import (
	"container/heap"
	"time"

	"github.com/sluice-lb/sluice/internal/shares"
	"github.com/sluice-lb/sluice/lb"
)

// namespaceShare is the percentage of the slots that one namespace may take while it is alone.
const namespaceShare shares.Percent = 50

// turns decide which checks begin. A check that is due waits for a slot. Namespaces get shares of the slots and take
// turns, so no tenant delays the checks of others. The Services of a namespace take turns too.
type turns struct {
	free       int64 // slots
	waiting    dues  // checks that are not due yet
	namespaces map[string]*namespaceTurn
	services   map[lb.Name]*serviceTurn
	ready      []*namespaceTurn // have checks that are due; the first is next
}

// namespaceTurn has the Services that have checks.
type namespaceTurn struct {
	flying int64
	ready  []*serviceTurn // have checks that are due; the first is next
}

// serviceTurn has the checks of one Service.
type serviceTurn struct {
	of    *namespaceTurn
	ready []*state // are due; the first is next
}

func newTurns(slots int64) turns {
	return turns{free: slots, namespaces: make(map[string]*namespaceTurn), services: make(map[lb.Name]*serviceTurn)}
}

// service returns the Service with a name.
func (q *turns) service(name lb.Name) *serviceTurn {
	s := q.services[name]
	if s == nil {
		n := q.namespaces[name.Namespace]
		if n == nil {
			n = new(namespaceTurn)
			q.namespaces[name.Namespace] = n
		}
		s = &serviceTurn{of: n}
		q.services[name] = s
	}
	return s
}

// reset forgets what waits, and the namespaces that have nothing in flight.
func (q *turns) reset() {
	clear(q.waiting)
	q.waiting, q.ready = q.waiting[:0], nil
	clear(q.services)
	for name, n := range q.namespaces {
		if n.ready = nil; n.flying == 0 {
			delete(q.namespaces, name)
		}
	}
}

// wait lets a check wait until it is due.
func (q *turns) wait(s *state) { heap.Push(&q.waiting, s) }

// release gives the slot of a check back.
func (q *turns) release(s *state) {
	q.free++
	s.service.of.flying--
}

// begin calls start for the checks that are due and get a slot.
func (q *turns) begin(now time.Time, start func(*state)) {
	for len(q.waiting) > 0 && !q.waiting[0].due.After(now) {
		q.queue(heap.Pop(&q.waiting).(*state))
	}
	for progress := true; progress; {
		progress = false
		for range len(q.ready) {
			if q.free == 0 {
				return
			}
			n := q.ready[0]
			q.ready = q.ready[1:]
			if s := n.next(q.free); s != nil {
				q.free--
				progress = true
				start(s)
			}
			if len(n.ready) > 0 {
				q.ready = append(q.ready, n)
			}
		}
	}
}

// queue puts a check behind the others of its Service that are due.
func (q *turns) queue(s *state) {
	of := s.service
	if len(of.of.ready) == 0 {
		q.ready = append(q.ready, of.of)
	}
	if len(of.ready) == 0 {
		of.of.ready = append(of.of.ready, of)
	}
	of.ready = append(of.ready, s)
}

// next takes the check of the namespace that is next, while so many slots are free. Nil: none may begin.
func (n *namespaceTurn) next(free int64) *state {
	if !namespaceShare.Allows(n.flying, 1, free) {
		return nil
	}
	of := n.ready[0]
	n.ready = n.ready[1:]
	s := of.ready[0]
	if of.ready = of.ready[1:]; len(of.ready) > 0 {
		n.ready = append(n.ready, of)
	}
	n.flying++
	return s
}

// dues is a heap of checks, the one that is due first at its top.
type dues []*state

func (d dues) Len() int           { return len(d) }
func (d dues) Less(i, j int) bool { return d[i].due.Before(d[j].due) }
func (d dues) Swap(i, j int)      { d[i], d[j] = d[j], d[i] }
func (d *dues) Push(s any)        { *d = append(*d, s.(*state)) }
func (d *dues) Pop() any {
	end := len(*d) - 1
	s := (*d)[end]
	(*d)[end] = nil
	*d = (*d)[:end]
	return s
}
