package session

import (
	"time"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

// A client that every backend has no room for (ErrFull) keeps its dial, as a held one does, and has a place in the
// queue of its Service, which all loops share.

// place is that of a dial.
type place struct {
	balancer.Waiter
	waits bool // and is no dial in flight
}

// queue has d wait for its turn. The error says why it is refused.
func (d *dial[C]) queue() error {
	sh := d.sh
	wait, err := d.ladder.Queue(sh.Config, d.waiter())
	if err != nil {
		return err
	}
	if !d.attendClient() {
		d.place.Leave()
		return balancer.ErrFull
	}
	sh.Count.Queues.Add(1)
	d.wait(time.Duration(wait))
	return nil
}

// waiter returns what d waits with.
func (d *dial[C]) waiter() *balancer.Waiter {
	if d.place == nil {
		turn := d.turned
		d.place = new(place)
		d.place.Wake = func() { _ = d.sh.Loop.Post(turn) } // else the loop has ended, and d with it
	}
	return &d.place.Waiter
}

// wait makes d, which has a place, one of those that wait, for so long.
func (d *dial[C]) wait(left time.Duration) {
	d.leave()
	d.place.waits = true
	d.note.waits()
	d.sh.Count.Queued.Add(1)
	d.sh.Loop.After(&d.timer, d, left)
}

// queued reports whether d is in a queue.
func (d *dial[C]) queued() bool { return d.place != nil && d.place.waits }

// stopWaiting makes d a dial in flight again.
func (d *dial[C]) stopWaiting() {
	d.sh.Loop.StopTimer(&d.timer)
	d.place.waits = false
	d.note.waited()
	d.sh.Count.Queued.Add(-1)
	d.enter()
}

// turnOf returns the choice of a turn that has come; not valid: there is none.
func (d *dial[C]) turnOf() balancer.Choice {
	if d.place == nil {
		return balancer.Choice{}
	}
	return d.place.Turn()
}

// turnTime is how long a client may wait at least that had its turn in another process and has not used it.
const turnTime = time.Second

// freezeQueue says of d since when it waits, if it does, or has not used its turn.
func (d *dial[C]) freezeQueue(to *Dialling) {
	if d.place == nil {
		return
	}
	served := d.place.Served()
	if served {
		to.Left = max(to.Left, turnTime)
	}
	if served || d.queued() {
		to.Queued, _ = d.place.Since()
	}
}

// turned has d go on if its turn has come. It may have left meanwhile, and be another's.
func (d *dial[C]) turned() {
	if d.queued() && d.place.Served() {
		d.stopWaiting()
		d.ready()
	}
}

// queueExpired refuses a client that has waited for long enough, unless its turn has just come.
func (d *dial[C]) queueExpired() {
	if d.place.Served() {
		d.turned()
		return
	}
	d.place.TimedOut()
	d.sh.Count.QueueTimedOut.Add(1)
	d.sh.because(d.owner, lb.QueueTimeout)
	d.sh.Abort(d.owner)
}

// resumeQueue has d wait that another process has had in the queue since some time, for as long as is left.
func (d *dial[C]) resumeQueue(since int64, left time.Duration) bool {
	if !d.sh.LB.Queues().Rejoin(d.waiter(), &d.ladder.flow, since, eventloop.Now()+int64(left)) {
		return false
	}
	d.wait(left)
	return true
}
