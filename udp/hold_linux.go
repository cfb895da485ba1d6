package udp

import (
	"bytes"
	"container/list"
	"time"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
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

// holds is what a loop keeps. A Service has no more of it than is free: alone it gets half, and something stays free
// for the next.
type holds struct {
	all   map[heldBy]*list.Element
	order list.List       // of *held, those first that came first
	of    map[lb.Name]int // bytes of each Service
	bytes int             // of all
	timer eventloop.Timer // runs until the time of one is over
}

// heldBy is whose datagrams are kept.
type heldBy struct {
	ln  *listener
	key flowKey
}

// held is what is kept of a client.
type held struct {
	by       heldBy
	of       lb.Name
	place    balancer.Held
	until    int64 // ns
	left     int   // hops, as in listener.forward
	messages []message
}

// hold keeps the shard's out for a client that has no flow since there is no backend. False: it is not to be kept.
func (ln *listener) hold(key flowKey, left int, now int64) bool {
	sh := ln.shard
	var h *held
	if e := sh.holds.all[heldBy{ln, key}]; e != nil {
		h = e.Value.(*held)
	} else if h = ln.newHeld(key, now); h == nil {
		return false
	}
	h.left = min(h.left, left)
	for _, m := range sh.out.message[:sh.out.n] {
		if len(h.messages) >= heldEach || !sh.holds.take(h.of, len(m.data)) {
			sh.count.HoldFull.Add(1)
			sh.count.NoBackend.Add(uint64(datagrams(len(m.data), m.segment)))
			continue
		}
		h.messages = append(h.messages, message{bytes.Clone(m.data), m.segment})
	}
	return true
}

// newHeld begins to keep what a client sends. nil: its Service does not request that, or too much is kept.
func (ln *listener) newHeld(key flowKey, now int64) *held {
	sh := ln.shard
	flow := balancer.Flow{Frontend: ln.frontend, Client: key.client.Addr()}
	place, wait, full := sh.server.LB.Queues().Hold(&flow, now)
	owner := sh.server.LB.Table().Owner(ln.frontend)
	if place.Valid() && (owner == nil || !sh.holds.take(owner.Service(), heldSize)) {
		full = true
		place.Refused()
		place.End()
	}
	if full {
		sh.count.HoldFull.Add(1)
	}
	if !place.Valid() {
		return nil
	}
	h := &held{by: heldBy{ln, key}, of: owner.Service(), place: place, until: now + wait, left: plenty}
	if sh.holds.all == nil {
		sh.holds.all = make(map[heldBy]*list.Element)
	}
	sh.holds.all[h.by] = sh.holds.order.PushBack(h)
	sh.count.Held.Add(1)
	if t := &sh.holds.timer; !t.Active() || sh.loop.Left(t) > time.Duration(wait) {
		sh.loop.After(t, (*holdTimer)(sh), time.Duration(wait))
	}
	return h
}

// take takes room for a Service. False: there is none, or it has its share.
func (hs *holds) take(of lb.Name, n int) bool {
	if hs.of[of]+n > heldBytes-hs.bytes {
		return false
	}
	if hs.of == nil {
		hs.of = make(map[lb.Name]int)
	}
	hs.of[of] += n
	hs.bytes += n
	return true
}

// clients goes through what is kept, in order. What it passes may be taken out meanwhile.
func (hs *holds) clients(yield func(*held) bool) {
	for e := hs.order.Front(); e != nil; {
		h := e.Value.(*held)
		if e = e.Next(); !yield(h) {
			return
		}
	}
}

// unhold takes h out, and gives its place back.
func (sh *shard) unhold(h *held) {
	hs := &sh.holds
	hs.order.Remove(hs.all[h.by])
	delete(hs.all, h.by)
	n := heldSize
	for _, m := range h.messages {
		n += len(m.data)
	}
	hs.bytes -= n
	if hs.of[h.of] -= n; hs.of[h.of] == 0 {
		delete(hs.of, h.of)
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
	for one := range sh.holds.clients {
		if !sh.server.LB.Queues().HoldEnds(&balancer.Flow{Frontend: one.by.ln.frontend}) {
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
	for one := range ln.shard.holds.clients {
		if one.by.ln == ln {
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
	for one := range sh.holds.clients {
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
