package udp

import (
	"bytes"
	"time"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/lb"
)

// While a Service that requests it has no backend (lb.Policies.Hold), the first datagrams of its clients are kept, to
// be sent when it has one. They do not cross to another process: clients of UDP ask again.

const (
	heldEach  = 4       // datagrams, or GRO batches, of a client
	heldBytes = 1 << 20 // of a loop, with
	heldSize  = 512     // for each client

	// heldPause is the shortest time between two looks at all of them.
	heldPause = 10 * time.Millisecond
)

// holds is what a loop keeps.
type holds struct {
	all   map[heldBy]*held
	first *held // those that came first are sent first
	last  *held
	bytes int
	timer eventloop.Timer // runs until the time of the first is over, or of one before it
}

// heldBy is whose datagrams are kept.
type heldBy struct {
	ln  *listener
	key flowKey
}

// held is what is kept of a client.
type held struct {
	by             heldBy
	place          lb.Held
	until          int64 // ns
	left           int   // hops, as in listener.forward
	messages       []message
	before, behind *held
}

// hold keeps the shard's out for a client that has no flow since there is no backend. False: it is not to be kept.
func (ln *listener) hold(key flowKey, left int, now int64) bool {
	sh := ln.shard
	h := sh.holds.all[heldBy{ln, key}]
	if h == nil {
		if sh.holds.bytes+heldSize > heldBytes {
			sh.count.HoldFull.Add(1)
			return false
		}
		place, wait, full := sh.server.LB.Hold(&lb.Flow{Frontend: ln.frontend, Client: key.client.Addr()}, now)
		if full {
			sh.count.HoldFull.Add(1)
		}
		if !place.Valid() {
			return false
		}
		h = &held{by: heldBy{ln, key}, place: place, until: now + wait, left: left}
		sh.holds.add(h)
		sh.count.Held.Add(1)
		if t := &sh.holds.timer; !t.Active() || sh.loop.Left(t) > time.Duration(wait) {
			sh.loop.After(&sh.holds.timer, (*holdTimer)(sh), time.Duration(wait))
		}
	}
	h.left = min(h.left, left)
	for _, m := range sh.out.message[:sh.out.n] {
		if len(h.messages) >= heldEach || sh.holds.bytes+len(m.data) > heldBytes {
			sh.count.HoldFull.Add(1)
			sh.count.NoBackend.Add(uint64(datagrams(len(m.data), m.segment)))
			continue
		}
		sh.holds.bytes += len(m.data)
		h.messages = append(h.messages, message{bytes.Clone(m.data), m.segment})
	}
	return true
}

func (hs *holds) add(h *held) {
	if hs.all == nil {
		hs.all = make(map[heldBy]*held)
	}
	hs.all[h.by] = h
	hs.bytes += heldSize
	if h.before = hs.last; h.before != nil {
		h.before.behind = h
	} else {
		hs.first = h
	}
	hs.last = h
}

// unhold takes h out, and gives its place back.
func (sh *shard) unhold(h *held) {
	hs := &sh.holds
	delete(hs.all, h.by)
	hs.bytes -= heldSize
	if h.before != nil {
		h.before.behind = h.behind
	} else {
		hs.first = h.behind
	}
	if h.behind != nil {
		h.behind.before = h.before
	} else {
		hs.last = h.before
	}
	for _, m := range h.messages {
		hs.bytes -= len(m.data)
	}
	h.place.End()
	sh.count.Held.Add(-1)
}

// dropHeld drops what is kept of a client.
func (sh *shard) dropHeld(h *held) {
	for _, m := range h.messages {
		sh.count.NoBackend.Add(uint64(datagrams(len(m.data), m.segment)))
	}
	sh.unhold(h)
}

// sendHeld sends what is kept of clients whose wait is over, those first that came first.
func (sh *shard) sendHeld(now int64) {
	for h := sh.holds.first; h != nil; {
		one := h
		h = h.behind
		if !sh.server.LB.Ends(&lb.Flow{Frontend: one.by.ln.frontend}) {
			continue
		}
		sh.unhold(one)
		f, dropped := one.by.ln.flow(&one.by.key, now)
		sh.out.reset(true)
		for _, m := range one.messages {
			sh.out.add(m.data, m.segment)
		}
		if f == nil {
			dropped.Add(uint64(sh.out.left))
			continue
		}
		sh.out.precede(f.header)
		if one.left < plenty {
			f.allow(one.left)
		}
		f.send(now)
	}
}

// forgetHeld drops what is kept of the clients of a listener that is closed.
func (ln *listener) forgetHeld() {
	for h := ln.shard.holds.first; h != nil; {
		one := h
		if h = h.behind; one.by.ln == ln {
			ln.shard.dropHeld(one)
		}
	}
}

// holdTimer is a shard as what looks whose time is over.
type holdTimer shard

// Expire drops what was kept for long enough.
func (t *holdTimer) Expire(*eventloop.Timer) {
	sh, now := (*shard)(t), eventloop.Now()
	next := int64(0)
	for h := sh.holds.first; h != nil; {
		one := h
		h = h.behind
		switch {
		case one.until <= now:
			sh.count.HoldExpired.Add(1)
			one.place.Refused()
			sh.dropHeld(one)
		case next == 0 || one.until < next:
			next = one.until
		}
	}
	if next != 0 {
		sh.loop.After(&sh.holds.timer, t, max(heldPause, time.Duration(next-now)))
	}
}
