package session

import (
	"math"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

// dial is what a connection needs only until its backend has answered.
type dial[C Owner[C]] struct {
	sh     *Shard[C]
	owner  C
	timer  eventloop.Timer
	ladder Ladder
	waits  *noPorts[C] // that it waits in, or nil
	turn   entry[*dial[C]]
	age    entry[*dial[C]] // in Shard.dials, or Shard.held
	held   balancer.Held   // it waits since there is no backend
	note   beginning
	place  *place // in the queue of its Service; nil: it has never had one
}

// Dial connects to one backend after the other until one accepts, and aborts c if none is left to try. It begins when
// the Service has its turn.
func (sh *Shard[C]) Dial(c C, flow balancer.Flow) {
	d := sh.newDial(c)
	d.ladder.Start(flow)
	d.note.accepted = sh.inserted // just now
	d.ready()
}

// ready has d go on when its Service has its turn.
func (d *dial[C]) ready() {
	of := d.owner.Base().Claim.service()
	if of == nil {
		d.next() // such a dial ends at once, unless the Service has been found since
		return
	}
	d.sh.rota.add(&d.turn, of)
	d.sh.serveLater()
}

func (sh *Shard[C]) newDial(c C) *dial[C] {
	d := reuse(&sh.free)
	if d == nil {
		d = &dial[C]{sh: sh}
		d.turn.value, d.age.value = d, d
	}
	d.owner, c.Base().dial, d.note = c, d, beginning{}
	d.enter()
	return d
}

// enter makes d one of the dials in flight, or ready.
func (d *dial[C]) enter() {
	d.sh.dials.push(&d.age)
	d.sh.Count.Dialling.Add(1)
	d.owner.Base().Claim.Dial()
}

// leave takes d from them.
func (d *dial[C]) leave() {
	d.sh.dials.remove(&d.age)
	d.sh.Count.Dialling.Add(-1)
	d.owner.Base().Claim.Dialled()
}

// endDial returns the dial state, if there is any.
func (sh *Shard[C]) endDial(c *Conn[C]) {
	d := c.dial
	if d == nil {
		return
	}
	if d.held.Valid() {
		d.release()
	}
	if d.queued() {
		d.stopWaiting()
	}
	d.leave()
	if d.place != nil {
		d.place.Leave()
	}
	var none C
	c.dial, d.owner = nil, none
	sh.Loop.StopTimer(&d.timer)
	if d.waits != nil {
		d.waits.remove(d)
	}
	sh.rota.remove(&d.turn)
	keep(&sh.free, d)
}

// old returns the oldest dial, if it waits for backends that do not answer. It makes room for a new client, since many
// Services of such backends can take all places, each with less than its share. nil: the dials are young, and soon
// done.
func (sh *Shard[C]) old() *dial[C] {
	if sh.dials.first == nil || !sh.dials.first.value.ladder.waits() {
		return nil
	}
	return sh.dials.first.value
}

// next tries one backend after the other until a connect is under way, d waits, or none is left to try.
func (d *dial[C]) next() {
	sh, conn := d.sh, d.owner.Base()
	for {
		choice, timeout, err := d.ladder.Turn(sh.Config, d.turnOf())
		if err == balancer.ErrNoBackend && d.hold() {
			return
		}
		if err == balancer.ErrFull {
			if err = d.queue(); err == nil {
				return
			}
		}
		if err != nil {
			Refuse(sh.Count, err)
			sh.because(d.owner, EndOf(err, d.note.silent))
			sh.Abort(d.owner)
			return
		}
		conn.Choice = choice
		if n := sh.noPorts[choice.Backend()]; n != nil {
			if d.passOver(n) {
				continue
			}
			return
		}
		sh.Count.Dials.Add(1)
		switch err := d.owner.Connect(); {
		case err == nil:
			sh.Loop.After(&d.timer, d, timeout)
			return
		case isNoPorts(err):
			if !d.passOver(sh.noPortsTo(choice.Backend())) {
				return
			}
		case Shortage(err) && d.ladder.Short(sh.Count):
			d.hangUp() // not the backend's fault
			sh.Loop.After(&d.timer, d, ShortageRetry)
			return
		default:
			sh.Count.DialRefused.Add(1)
			d.failed(err)
		}
	}
}

// passOver leaves a backend without ports for the others of the Service, which takes no attempt. False: there are no
// others; d waits, or has ended.
func (d *dial[C]) passOver(n *noPorts[C]) bool {
	another := d.ladder.PassOver(d.owner.Base().Choice)
	d.hangUp() // not the backend's fault
	if another {
		return true
	}
	if !n.add(d) {
		d.sh.because(d.owner, lb.NoResource)
		d.sh.Abort(d.owner)
	}
	return false
}

// failed ends an attempt.
func (d *dial[C]) failed(err error) {
	conn := d.owner.Base()
	d.note.silent, d.note.held = err == unix.ETIMEDOUT, false
	d.ladder.Failed(conn.Choice)
	d.sh.Loop.StopTimer(&d.timer)
	if !conn.marks.has(unjudged) {
		conn.Choice = d.ladder.End(conn.Choice, err)
	}
	d.hangUp()
}

// hangUp closes the socket to the backend, if there is one, and returns the choice.
func (d *dial[C]) hangUp() {
	_, _, backend := d.owner.Parts()
	if backend.fd >= 0 {
		d.owner.Reset(backend.FD())
	}
	d.sh.closeSocket(backend)
	d.owner.Base().Done()
}

// Expire ends an attempt that was not answered, or a wait: for a local resource, or for a backend.
func (d *dial[C]) Expire(*eventloop.Timer) {
	switch {
	case d.held.Valid():
		d.holdExpired()
		return
	case d.queued():
		d.queueExpired()
		return
	}
	if choice := d.owner.Base().Choice; choice.Valid() {
		d.sh.Count.DialTimedOut.Add(1)
		if timeout, ok := d.ladder.Stays(d.sh.Config, choice); ok {
			d.sh.Loop.After(&d.timer, d, timeout)
			return
		}
		d.failed(unix.ETIMEDOUT)
	}
	d.ready()
}

// dialEvent looks what has come of the connect.
func (sh *Shard[C]) dialEvent(c C) {
	conn := c.Base()
	switch accepted, err := c.Connected(); {
	case err != nil:
		sh.Count.DialRefused.Add(1)
		conn.dial.failed(err)
		conn.dial.ready()
	case accepted:
		now := conn.dial.ladder.Answered(conn.Choice)
		if times := conn.Claim.Times(); times != nil {
			times.Observe(balancer.ConnectTime, int64(conn.dial.connectTime(now)))
		}
		if sh.Log != nil {
			conn.dial.keepNote(now)
		}
		sh.endDial(conn)
		sh.Count.Established.Add(1)
		if !sh.attend(c, now) {
			return
		}
		_, _, backend := c.Parts()
		backend.Writable = true
		c.Relay(true)
		if !conn.Closed {
			c.Relay(false)
		}
	}
}

// attend begins to look after a connection whose backend has answered, as its policies need it. False: it has ended.
func (sh *Shard[C]) attend(c C, now int64) bool {
	conn := c.Base()
	p := conn.Choice.Policies()
	if p.Watched() {
		sh.walk.setAge(c, newAge(now, conn.Meter))
	} else if p.OnEndpointRemoved <= 0 {
		return true
	}
	due := sh.look(c, now) // its backend may have left meanwhile
	if conn.Closed {
		return false
	}
	if due != math.MaxInt64 {
		sh.watch(due - now)
	}
	return true
}

// shortages are of this host. ENOSPC means that its user watches too many descriptors already (epoll_ctl(2)).
// EADDRINUSE is SCTP's for all ports being used, which bind(2) and not connect(2) chooses.
var shortages = []unix.Errno{unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM, unix.EADDRNOTAVAIL, unix.EADDRINUSE,
	unix.EAGAIN, unix.ENOSPC}

// waits reports whether nothing has come of it for some time: a second attempt has failed, or a second wait for what
// this host lacks.
func (l *Ladder) waits() bool { return l.attempt > 1 || l.shortages > 1 }

// FreezeDial returns what another process needs to continue the dial of c. nil: the backend has answered.
func (sh *Shard[C]) FreezeDial(c C) *Dialling {
	dial := c.Base().dial
	if dial == nil {
		return nil
	}
	d := dial.ladder.Freeze()
	d.Left, d.Held = sh.Loop.Left(&dial.timer), dial.held.Valid()
	dial.freezeQueue(&d)
	return &d
}
