package session

import "github.com/sluice-lb/sluice/lb"

// rota is what is ready, in a queue for each Service: the Services have their turns one after the other, so that a
// storm at one of them delays itself and not the others.
type rota[T any] struct {
	queues []queue[T] // none is empty
	turn   int        // the queue that is next
}

// queue is a list, first come, first served. In a rota it is what is ready of one Service.
type queue[T any] struct {
	of          *tenant[lb.Name]
	first, last *entry[T]
}

// entry is a place in a queue.
type entry[T any] struct {
	value          T
	of             *tenant[lb.Name] // whose queue of a rota it is in; nil: it is in none
	before, behind *entry[T]
}

// push puts e at the end.
func (q *queue[T]) push(e *entry[T]) {
	if e.before = q.last; e.before != nil {
		e.before.behind = e
	} else {
		q.first = e
	}
	q.last = e
}

// remove takes e out, which is in the queue.
func (q *queue[T]) remove(e *entry[T]) {
	if e.before != nil {
		e.before.behind = e.behind
	} else {
		q.first = e.behind
	}
	if e.behind != nil {
		e.behind.before = e.before
	} else {
		q.last = e.before
	}
	e.before, e.behind = nil, nil
}

// add puts e at the end of the queue of a Service.
func (r *rota[T]) add(e *entry[T], of *tenant[lb.Name]) {
	e.of = of
	if of.queue == 0 {
		r.queues = append(r.queues, queue[T]{of: of})
		of.queue = len(r.queues)
	}
	r.queues[of.queue-1].push(e)
}

// take removes and returns the entry whose turn it is; nil: there is none.
func (r *rota[T]) take() *entry[T] {
	if len(r.queues) == 0 {
		return nil
	}
	r.turn %= len(r.queues)
	e := r.queues[r.turn].first
	if r.queues[r.turn].last != e {
		r.turn++ // else the queue that takes its place is next
	}
	r.remove(e)
	return e
}

// remove takes e out of its queue, and an empty queue out of the rota. An entry that is in none is ignored.
func (r *rota[T]) remove(e *entry[T]) {
	of := e.of
	if of == nil {
		return
	}
	e.of = nil
	q := &r.queues[of.queue-1]
	q.remove(e)
	if q.first != nil {
		return
	}
	end := len(r.queues) - 1
	*q = r.queues[end]
	q.of.queue = of.queue
	of.queue = 0
	r.queues[end] = queue[T]{}
	r.queues = r.queues[:end]
}
