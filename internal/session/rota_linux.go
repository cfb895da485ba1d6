package session

import "github.com/sluice-lb/sluice/lb"

// rota is the dials that are ready, in a queue for each Service: the Services have their turns one after the other, so
// that a storm at one of them delays itself and not the others.
type rota[C Owner[C]] struct {
	queues []queue[C] // none is empty
	turn   int        // the queue that is next
}

// queue is the dials of one Service, first come, first served.
type queue[C Owner[C]] struct {
	of          *tenant[lb.Name]
	first, last *dial[C]
}

// add puts d at the end of the queue of a Service.
func (r *rota[C]) add(d *dial[C], of *tenant[lb.Name]) {
	d.queuedIn = of
	if of.queue == 0 {
		r.queues = append(r.queues, queue[C]{of: of, first: d, last: d})
		of.queue = len(r.queues)
		return
	}
	q := &r.queues[of.queue-1]
	d.before, q.last.behind = q.last, d
	q.last = d
}

// take removes and returns the dial whose turn it is; nil: there is none.
func (r *rota[C]) take() *dial[C] {
	if len(r.queues) == 0 {
		return nil
	}
	r.turn %= len(r.queues)
	d := r.queues[r.turn].first
	if r.queues[r.turn].last != d {
		r.turn++ // else the queue that takes its place is next
	}
	r.remove(d)
	return d
}

// remove takes d out of its queue, and an empty queue out of the rota.
func (r *rota[C]) remove(d *dial[C]) {
	of := d.queuedIn
	q := &r.queues[of.queue-1]
	if d.before != nil {
		d.before.behind = d.behind
	} else {
		q.first = d.behind
	}
	if d.behind != nil {
		d.behind.before = d.before
	} else {
		q.last = d.before
	}
	d.before, d.behind, d.queuedIn = nil, nil, nil
	if q.first != nil {
		return
	}
	end := len(r.queues) - 1
	*q = r.queues[end]
	q.of.queue = of.queue
	of.queue = 0
	r.queues[end] = queue[C]{}
	r.queues = r.queues[:end]
}
