package session

import (
	"time"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/lb"
)

// A client whose Service has no backend, and requests that it waits (lb.Policies.Hold), keeps its dial, which is in
// Shard.held meanwhile and counts as no dial in flight. It costs its descriptor and a timer.

// hold has d wait for a backend. False: its Service does not request that, or too many wait.
func (d *dial[C]) hold() bool {
	sh, flow := d.sh, &d.ladder.flow
	held, wait, full := sh.LB.Queues().Hold(flow, eventloop.Now())
	if full {
		sh.Count.HoldFull.Add(1)
	}
	if !held.Valid() {
		return false
	}
	if !d.attendClient() {
		held.End()
		return false
	}
	d.held = held
	sh.Count.Holds.Add(1)
	d.await(time.Duration(wait))
	return true
}

// attendClient has it noticed when the client leaves, also if it has done so during an earlier attempt, when that was
// of no interest.
func (d *dial[C]) attendClient() bool {
	_, client, _ := d.owner.Parts()
	err := d.owner.Watch()
	if err == nil {
		err = d.sh.Loop.Rearm(client.FD())
	}
	if err != nil {
		d.sh.Count.Shortages.Add(1)
	}
	return err == nil
}

// await puts d among those that wait, for so long.
func (d *dial[C]) await(left time.Duration) {
	sh := d.sh
	d.leave()
	sh.held.push(&d.age)
	d.note.waits()
	d.note.held = true
	sh.Count.Held.Add(1)
	sh.Loop.After(&d.timer, d, left)
	if sh.LB.Queues().HoldEnds(&d.ladder.flow) { // since the Pick, and it may have been too soon for Wake to see d
		d.release()
		d.ready()
	}
}

// release ends the wait of d, which is a dial in flight again.
func (d *dial[C]) release() {
	sh := d.sh
	sh.Loop.StopTimer(&d.timer)
	sh.held.remove(&d.age)
	sh.Count.Held.Add(-1)
	d.held.End()
	d.note.waited()
	d.enter()
}

// Wake has clients go on whose wait is over, the first that came first, each Service in turn. It is for any goroutine,
// after the table has changed.
func (sh *Shard[C]) Wake() {
	if sh.Count.Held.Load() == 0 || !sh.waking.CompareAndSwap(false, true) {
		return
	}
	if sh.Loop.Post(sh.wake) != nil { // the loop has ended, and its connections with it
		sh.waking.Store(false)
	}
}

func (sh *Shard[C]) wake() {
	sh.waking.Store(false)
	for e := sh.held.first; e != nil; {
		d := e.value
		if e = e.behind; sh.LB.Queues().HoldEnds(&d.ladder.flow) {
			d.release()
			d.ready()
		}
	}
}

// StartDrain starts draining. Held clients are refused, since a process that ends gets no table with a backend any
// more.
func (sh *Shard[C]) StartDrain() {
	for e := sh.held.first; e != nil; {
		d := e.value
		e = e.behind
		d.holdExpired()
	}
	sh.Drain.Start(sh.Empty())
}

// abandoned ends the connection of a client that has left while it was held, or in a queue.
func (d *dial[C]) abandoned() {
	if d.queued() {
		d.sh.Count.QueueLeft.Add(1)
	} else {
		d.sh.Count.HoldLeft.Add(1)
	}
	d.sh.because(d.owner, lb.ClientQueue)
	d.sh.Abort(d.owner)
}

// holdExpired refuses a client that has waited for long enough.
func (d *dial[C]) holdExpired() {
	d.sh.Count.HoldExpired.Add(1)
	d.sh.Count.NoBackend.Add(1)
	d.held.Refused()
	d.sh.because(d.owner, lb.QueueTimeout)
	d.sh.Abort(d.owner)
}
