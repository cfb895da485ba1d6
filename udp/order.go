package udp

// A flow is in four orders: those in which the flows of its frontend's socket and of its shard were
// made, and those in which the flows of its Service and of its client's address were active. After
// its first answer it is in a fifth one (shard.oneShots).
const (
	byFrontend = iota
	byAge
	byService
	byClient
	byAnswer
	orders
)

// link is a flow's place in one order.
type link struct{ next, prev *flow }

// order is a list of flows, the most recently active first, or the youngest.
type order struct {
	by          int // byFrontend, byAge, byService, byClient or byAnswer
	first, last *flow
	len         int
	ahead       *flow // that a walk goes on with, when it pauses; nil: none is under way
}

func (o *order) pushFront(f *flow) {
	l := &f.links[o.by]
	l.prev, l.next = nil, o.first
	if o.first != nil {
		o.first.links[o.by].prev = f
	} else {
		o.last = f
	}
	o.first = f
	o.len++
}

func (o *order) remove(f *flow) {
	l := &f.links[o.by]
	if o.ahead == f {
		o.ahead = l.next
	}
	if l.prev != nil {
		l.prev.links[o.by].next = l.next
	} else {
		o.first = l.next
	}
	if l.next != nil {
		l.next.links[o.by].prev = l.prev
	} else {
		o.last = l.prev
	}
	*l = link{}
	o.len--
}

func (o *order) toFront(f *flow) {
	if o.first != f {
		o.remove(f)
		o.pushFront(f)
	}
}

func (o *order) toBack(f *flow) {
	if o.last == f {
		return
	}
	o.remove(f)
	o.last.links[o.by].next = f
	f.links[o.by] = link{prev: o.last}
	o.last = f
	o.len++
}
