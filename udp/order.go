package udp

// A flow is in three orders: two of activity, that of its frontend and that of its loop,
// and that in which the loop's flows were made.
const (
	byFrontend = iota
	byLoop
	byAge
	orders
)

// link is a flow's place in one order.
type link struct{ next, prev *flow }

// order is a list of flows, the most recently active first, or the youngest.
type order struct {
	by          int // byFrontend, byLoop or byAge
	first, last *flow
	len         int
	ahead       *flow // that a walk goes on with, when it pauses; nil: none is under way
}

func (o *order) pushFront(f *flow) { o.insert(nil, f, o.first) }

func (o *order) insert(prev, f, next *flow) {
	f.links[o.by] = link{next: next, prev: prev}
	o.join(prev, f)
	o.join(f, next)
	o.len++
}

// join makes two flows neighbours; nil is an end.
func (o *order) join(prev, next *flow) {
	if prev != nil {
		prev.links[o.by].next = next
	} else {
		o.first = next
	}
	if next != nil {
		next.links[o.by].prev = prev
	} else {
		o.last = prev
	}
}

func (o *order) remove(f *flow) {
	l := f.links[o.by]
	if o.ahead == f {
		o.ahead = l.next
	}
	o.join(l.prev, l.next)
	f.links[o.by] = link{}
	o.len--
}

func (o *order) toFront(f *flow) {
	if o.first != f {
		o.remove(f)
		o.pushFront(f)
	}
}

func (o *order) toBack(f *flow) {
	if o.last != f {
		o.remove(f)
		o.insert(o.last, f, nil)
	}
}
