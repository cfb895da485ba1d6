package packet

import (
	"cmp"
	"time"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/session"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/sctp/wire"
)

// moved does what a change of phase brings with it.
func (a *assoc) moved(was phase, from *side, c *wire.Content) {
	sh := a.sh
	if was == opening {
		if a.phase == answered {
			a.answered(a.dial.Answered(a.choice))
		}
		a.endDial()
	}
	a.startTimer()
	switch a.phase {
	case established:
		if !a.counted {
			a.counted = true
			sh.count.Established.Add(1)
		}
		sh.open.add(a)
	case ending:
		a.clientShut = from == &a.client
		sh.open.add(a)
	case ended:
		end := lb.Normal
		switch {
		case c.Kinds&wire.KindAbort == 0:
			sh.count.Completed.Add(1)
		case from == &a.client:
			sh.count.ClientAborts.Add(1)
			end = early(was, lb.ClientConnect, lb.ClientData)
		default:
			sh.count.BackendAborts.Add(1)
			end = early(was, lb.ServerConnect, lb.ServerData)
		}
		a.finish(end)
	}
}

// endDial gives the dial state back, if there is any. The timer is the next phase's from then on.
func (a *assoc) endDial() {
	if a.dial == nil {
		return
	}
	a.dial = nil
	a.sh.count.Dialling.Add(-1)
}

// limit returns how long the phase may last, or how long nothing may pass; not positive: for ever.
func (a *assoc) limit() time.Duration {
	switch a.phase {
	case answered:
		return handshakeTime
	case established:
		return a.sh.cfg.IdleTimeout
	case ending:
		return endingTime
	}
	return lingerTime
}

// startTimer starts the timer of the phase anew.
func (a *assoc) startTimer() {
	if limit := a.limit(); limit > 0 {
		a.sh.loop.After(&a.timer, a, limit)
	} else {
		a.sh.loop.StopTimer(&a.timer)
	}
}

// passed counts bytes from the client and to it.
func (a *assoc) passed(in, out int) {
	if a.meter.Add(a.choice, in, out) && a.phase == established &&
		(!a.timer.Active() || a.sh.loop.Left(&a.timer) > counting) {
		a.sh.loop.After(&a.timer, a, counting)
	}
}

// finish ends an association: it counts no more, also for limits, and its choice is given back. It stays for what is
// sent again.
func (a *assoc) finish(end lb.End) {
	if a.list == &a.sh.over {
		return
	}
	sh := a.sh
	a.ends(end)
	sh.claims.End(a.claim)
	a.claim = session.Claim{}
	a.endDial()
	a.phase = ended
	a.leave(nil)
	sh.count.Active.Add(-1)
	sh.over.add(a)
	a.startTimer()
	sh.drain.Check(sh.idle())
}

// abort tells both sides that the association is over.
func (a *assoc) abort(end lb.End) {
	if a.phase != ended {
		a.sh.send(wire.Abort(cmp.Or(a.tags.Client, a.handshake.asked), false), &a.client, 0)
		if tag := a.tags.Backend; tag != 0 {
			a.sh.send(wire.Abort(tag, false), &a.backend, 0)
		}
	}
	a.finish(end)
}

// remove removes an association that is over.
func (a *assoc) remove() {
	sh := a.sh
	sh.loop.StopTimer(&a.timer)
	delete(sh.sides, a.client.key)
	if a.backend.a != nil {
		delete(sh.sides, a.backend.key)
	}
	a.list.Remove(a.place)
	sh.leave(a)
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
	if a.phase == ended {
		a.remove()
		return
	}
	if a.phase == established {
		a.meter.Flush(a.choice)
		if a.limit() <= 0 {
			return
		}
	}
	if rest := a.active + int64(a.limit()) - eventloop.Now(); rest > 0 && a.phase != answered {
		sh.loop.After(&a.timer, a, time.Duration(rest))
		return
	}
	sh.count.Expired.Add(1)
	a.abort(a.expired())
}
