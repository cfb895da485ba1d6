package session

import (
	"iter"
	"net/netip"
	"sync/atomic"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/lb"
)

// Shard is the part of a server that lives on one loop, with connections C. Its methods run on the loop.
type Shard[C Owner[C]] struct {
	*Config
	Loop  *eventloop.Loop
	Count *Counters
	Drain eventloop.Drain

	ClientResets, BackendResets *atomic.Uint64 // connections that ended by an error on that side

	first, last C // of the list of connections
	listeners   map[*Listener[C]]struct{}
	retry       eventloop.Timer // runs while accepting is paused
	free        []*dial[C]
}

// Init makes the Shard ready. The counters for resets are the caller's to set.
func (sh *Shard[C]) Init(config *Config, loop *eventloop.Loop, count *Counters) {
	sh.Config, sh.Loop, sh.Count = config, loop, count
	sh.listeners = make(map[*Listener[C]]struct{})
}

// Insert puts a new connection at the end of the list. Two descriptors are its own from now on.
func (sh *Shard[C]) Insert(c C) {
	sh.Count.Active.Add(1)
	sh.join(sh.last, c)
	sh.last = c
}

// join makes b follow a in the list. Either may be none.
func (sh *Shard[C]) join(a, b C) {
	var none C
	if a != none {
		a.Base().next = b
	} else {
		sh.first = b
	}
	if b != none {
		b.Base().prev = a
	} else {
		sh.last = a
	}
}

func (sh *Shard[C]) remove(c C) {
	sh.join(c.Base().prev, c.Base().next)
}

// MoveToFront makes c the oldest of the list.
func (sh *Shard[C]) MoveToFront(c C) {
	var none C
	sh.remove(c)
	sh.join(c, sh.first)
	sh.join(none, c)
}

// Next returns the connection behind this one in the list, or none.
func (c *Conn[C]) Next() C { return c.next }

// All returns the connections, oldest first. One may end while it is visited.
func (sh *Shard[C]) All() iter.Seq[C] {
	return func(yield func(C) bool) {
		var none C
		for c := sh.first; c != none; {
			next := c.Base().next
			if !yield(c) {
				return
			}
			c = next
		}
	}
}

// Backward returns the connections, newest first. None may end meanwhile.
func (sh *Shard[C]) Backward() iter.Seq[C] {
	return func(yield func(C) bool) {
		var none C
		for c := sh.last; c != none && yield(c); c = c.Base().prev {
		}
	}
}

// Empty reports whether there are no connections.
func (sh *Shard[C]) Empty() bool {
	var none C
	return sh.first == none
}

// AbortAll aborts every connection.
func (sh *Shard[C]) AbortAll() {
	for !sh.Empty() {
		sh.Abort(sh.first)
	}
}

// Thaw continues a connection that another process has frozen: c, which has its sides, with a choice of service, if
// backend is valid, and in a dial, unless it is nil. handlers are those of both sides.
func (sh *Shard[C]) Thaw(c C, service lb.ID, backend netip.AddrPort, from *Dialling, handlers [2]eventloop.Handler) {
	sh.Descriptors.Adopt(2)
	conn := c.Base()
	conn.Shared, conn.Choice = true, Resume(sh.LB, service, backend) // the process before may not have ended yet
	sh.Insert(c)
	if from != nil {
		d := sh.newDial(c)
		d.ladder.Thaw(sh.LB, from, service, backend)
		sh.Loop.After(&d.timer, d, from.Left)
	}
	// What the sockets are ready for is reported as soon as they are watched.
	_, client, to := c.Parts()
	for i, s := range [...]*Side[C]{client, to} {
		if s.fd < 0 {
			continue
		}
		if err := sh.Loop.Add(s.FD(), handlers[i]); err != nil {
			sh.Count.Shortages.Add(1)
			sh.Abort(c)
			return
		}
	}
}
