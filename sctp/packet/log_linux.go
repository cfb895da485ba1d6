package packet

import (
	"net/netip"
	"time"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/look"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

// note is what is logged of an association beyond what there is to look at.
type note struct {
	connect, firstByte time.Duration // firstByte below 0: it has not come
	failed             int
	tried              []netip.AddrPort
	why                lb.Why
}

// early returns what an end is before an association is established, or later.
func early(at phase, before, later lb.End) lb.End {
	if at < established {
		return before
	}
	return later
}

// answered notes, at time now, that the backend has.
func (a *assoc) answered(now int64) {
	took := time.Duration(now - a.born)
	if times := a.claim.Times(); times != nil {
		times.Observe(balancer.ConnectTime, int64(took))
	}
	if some, _ := a.choice.Policies().Logs(); a.sh.cfg.Log != nil && some {
		a.note = &note{connect: took, firstByte: -1, why: a.dial.Why()}
		if n, tried := a.dial.Tried(); n > 0 {
			a.note.failed, a.note.tried = n, tried
		}
	}
}

// speaks notes that the backend sends its first user data.
func (a *assoc) speaks() {
	a.spoke = true
	age := time.Duration(eventloop.Now() - a.born)
	if times := a.claim.Times(); times != nil {
		times.Observe(balancer.FirstByteTime, int64(age))
	}
	if a.note != nil {
		a.note.firstByte = age
	}
}

// expired says what an association ends for whose phase has lasted for too long.
func (a *assoc) expired() lb.End {
	switch {
	case a.phase < established:
		return lb.ClientConnect
	case a.phase == established:
		return lb.IdleEnd
	case a.clientShut:
		return lb.ClientHalf
	}
	return lb.ServerHalf
}

// ends counts how an association ends, and logs it if its Service requests that.
func (a *assoc) ends(end lb.End) {
	sh, now := a.sh, eventloop.Now()
	i := a.info(now)
	var p *lb.Policies
	if d := a.dial; d != nil {
		f := d.Flow().Frontend
		p = sh.cfg.LB.Policies(f)
		if owner := sh.cfg.LB.Table().Owner(f); owner != nil {
			i.Service = *owner
		}
		i.Backend = netip.AddrPort{}
	} else {
		p = a.choice.Policies()
		if times := a.claim.Times(); times != nil {
			times.Observe(balancer.Duration, int64(i.Age))
		}
	}
	if !a.claim.Ended(end) && a.dial != nil {
		sh.cfg.LB.Ended(a.dial.Flow().Frontend, end)
	}
	some, onlyErrors := p.Logs()
	if sh.cfg.Log == nil || !some || end == lb.Normal && (onlyErrors || !sh.sample.Next(sh.cfg.LogSample)) {
		return
	}
	e := look.Ended{Info: i, End: end, Connect: -1, FirstByte: -1}
	e.Loop = sh.loop.Index()
	if d := a.dial; d != nil {
		e.Failed, e.Tried = d.Tried()
	}
	if n := a.note; n != nil {
		e.Connect, e.FirstByte, e.Failed, e.Tried, e.Why = n.connect, n.firstByte, n.failed, n.tried, n.why
	}
	sh.cfg.Log(&e)
}

// logRefused counts and logs a client that is beyond a limit or a share.
func (sh *shard) logRefused(f lb.Frontend, client netip.AddrPort) {
	sh.cfg.LB.Ended(f, sh.claims.Refused)
	if some, _ := sh.cfg.LB.Policies(f).Logs(); sh.cfg.Log == nil || !some {
		return
	}
	e := look.Ended{End: sh.claims.Refused, Wait: -1, Connect: -1, FirstByte: -1}
	e.Protocol, e.Client, e.Asked, e.Loop = lb.SCTP, client, f.Addr, sh.loop.Index()
	if owner := sh.cfg.LB.Table().Owner(f); owner != nil {
		e.Service = *owner
	}
	sh.cfg.Log(&e)
}
