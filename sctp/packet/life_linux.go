package packet

import (
	"time"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/sctp/wire"
)

// moved does what a change of phase brings with it.
func (a *assoc) moved(was phase, from *side, c *wire.Content) {
	sh := a.sh
	if was == opening {
		a.endDial()
	}
	switch a.phase {
	case answered:
		sh.loop.After(&a.timer, a, handshakeTime)
	case established:
		if !a.counted {
			a.counted = true
			sh.count.Established.Add(1)
		}
		sh.open.add(a)
		a.startIdleTimer()
	case ending:
		sh.open.add(a)
		sh.loop.After(&a.timer, a, endingTime)
	case ended:
		switch {
		case c.Kinds&wire.KindAbort == 0:
			sh.count.Completed.Add(1)
		case from == &a.client:
			sh.count.ClientAborts.Add(1)
		default:
			sh.count.BackendAborts.Add(1)
		}
		a.finish()
	}
}

// endDial gives the dial state back, if there is any.
func (a *assoc) endDial() {
	if a.dial == nil {
		return
	}
	a.dial = nil
	a.sh.loop.StopTimer(&a.timer)
	a.sh.count.Dialling.Add(-1)
}

// startIdleTimer starts the idle timer of an established association.
func (a *assoc) startIdleTimer() {
	if idle := a.sh.cfg.IdleTimeout; idle > 0 {
		a.sh.loop.After(&a.timer, a, idle)
	} else {
		a.sh.loop.StopTimer(&a.timer)
	}
}

// finish ends an association: it counts no more, and its choice is given back. It
// stays for what is sent again.
func (a *assoc) finish() {
	if a.list == &a.sh.over {
		return
	}
	sh := a.sh
	a.endDial()
	a.phase = ended
	if a.choice.Valid() {
		a.meter.Flush(a.choice)
		a.choice.Done(nil)
		a.choice = lb.Choice{}
	}
	sh.count.Active.Add(-1)
	sh.over.add(a)
	sh.loop.After(&a.timer, a, lingerTime)
	sh.drain.Check(sh.idle())
}

// abort tells both sides that the association is over.
func (a *assoc) abort() {
	if a.phase != ended {
		if tag := a.tags.Client; tag != 0 {
			a.sh.send(wire.Abort(tag, false), &a.client)
		} else {
			a.sh.send(wire.Abort(a.handshake.asked, false), &a.client)
		}
		if tag := a.tags.Backend; tag != 0 {
			a.sh.send(wire.Abort(tag, false), &a.backend)
		}
	}
	a.finish()
}

// remove removes an association that is over.
func (a *assoc) remove() {
	sh := a.sh
	sh.loop.StopTimer(&a.timer)
	delete(sh.sides, a.client.key)
	if a.backend.a != nil {
		delete(sh.sides, a.backend.key)
	}
	a.list.remove(a)
}

// Expire ends what its phase has lasted too long for. The timer is not restarted
// with each packet, so this is when it is looked how long ago the last one was.
func (a *assoc) Expire(*eventloop.Timer) {
	sh := a.sh
	if a.phase == opening {
		sh.count.DialTimedOut.Add(1)
		a.dialFailed(errSilent)
		a.dialNext()
		return
	}
	limit := handshakeTime
	switch a.phase {
	case established:
		limit = sh.cfg.IdleTimeout
	case ending:
		limit = endingTime
	case ended:
		a.remove()
		return
	}
	if rest := a.active + int64(limit) - eventloop.Now(); rest > 0 && a.phase != answered {
		sh.loop.After(&a.timer, a, time.Duration(rest))
		return
	}
	sh.count.Expired.Add(1)
	a.abort()
}
