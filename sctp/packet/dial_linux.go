package packet

import (
	"net/netip"
	"time"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/session"
	"github.com/sluice-lb/sluice/internal/socket"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/sctp/wire"
)

// Ports of ours towards backends: Linux's own ephemeral range
// (ip_local_port_range, ip(7)).
const (
	firstPort = 32768
	lastPort  = 60999
)

// dial is what an association needs only until its backend has answered.
type dial struct {
	session.Ladder
	init []byte // the client's last INIT
}

// accept starts an association for a client's INIT.
func (sock *rawSocket) accept(f lb.Frontend, d *received, c *wire.Content, now int64) {
	sh := sock.sh
	if sh.drain.Started() {
		sh.count.Draining.Add(1)
		return
	}
	if !sh.room() {
		sh.count.Full.Add(1)
		return
	}
	b := wire.Strip(d.sctp)
	if b == nil {
		sh.count.Malformed.Add(1)
		return
	}
	a := &assoc{sh: sh, active: now}
	a.client = newSide(a, netip.AddrPortFrom(d.peer, c.Source), netip.AddrPortFrom(d.local, c.Dest), d.scope)
	a.handshake.asked = c.InitTag
	a.dial = &dial{init: append([]byte(nil), b...)}
	a.dial.Start(lb.Flow{Frontend: f, Client: d.peer, Now: now})
	sh.sides[a.client.key] = &a.client
	sh.dialling.add(a)
	sh.count.Accepted.Add(1)
	sh.count.Active.Add(1)
	sh.count.Dialling.Add(1)
	a.dialNext()
}

// room makes room for one association more, and reports whether there is.
func (sh *shard) room() bool {
	if sh.dialling.len+sh.open.len+sh.over.len < sh.limit {
		return true
	}
	if a := sh.over.first; a != nil {
		a.remove()
		return true
	}
	a := sh.dialling.first
	if a == nil {
		return false
	}
	sh.count.Evicted.Add(1)
	a.finish(nil)
	a.remove()
	return true
}

// dialNext asks one backend after the other until one is asked or none is left.
func (a *assoc) dialNext() {
	sh, d := a.sh, a.dial
	for {
		choice, timeout, ok := d.Next(sh.dials, &sh.count.Stats)
		if !ok {
			a.abort()
			return
		}
		a.choice = choice
		err := a.connect()
		switch err {
		case nil:
			sh.send(d.init, &a.backend)
			sh.loop.After(&a.timer, a, timeout)
			return
		case errNoPort:
			sh.count.Shortages.Add(1)
			err = nil // not the backend's fault
		default:
			sh.count.DialRefused.Add(1)
		}
		a.dialFailed(err)
	}
}

// dialFailed ends an attempt and remembers the backend as tried.
func (a *assoc) dialFailed(err error) {
	a.dial.Failed(a.choice)
	a.leave(err)
}

// leave gives the backend of an attempt up.
func (a *assoc) leave(err error) {
	a.sh.loop.StopTimer(&a.timer)
	a.choice.Done(err)
	a.choice = lb.Choice{}
}

// connect makes the side to the chosen backend, unless it is the one that there is:
// a backend that is asked again is asked from the same port, so that it may be slow.
// The error is errNoPort, or that there is no way to it.
func (a *assoc) connect() error {
	sh, to := a.sh, a.choice.Backend()
	if a.backend.a != nil {
		if a.backend.peer() == to {
			return nil
		}
		delete(sh.sides, a.backend.key)
		a.backend = side{}
	}
	sock, err := sh.rawSocket(to.Addr().Is6())
	if err != nil {
		return err
	}
	local, err := socket.Source(sock.router, to)
	if err != nil {
		return err
	}
	port, ok := sh.port(to, local)
	if !ok {
		return errNoPort
	}
	a.backend = newSide(a, to, netip.AddrPortFrom(local, port), 0)
	sh.sides[a.backend.key] = &a.backend
	return nil
}

// port returns a port of ours for a side to a backend: one that is not in use
// between these addresses, and from which the answers come to this shard.
func (sh *shard) port(to netip.AddrPort, local netip.Addr) (uint16, bool) {
	key := newSide(nil, to, netip.AddrPortFrom(local, 0), 0).key
	for range lastPort - firstPort + 1 {
		if sh.ports++; sh.ports < firstPort || sh.ports > lastPort {
			sh.ports = firstPort
		}
		if sh.n > 1 && shareOf(to.Port(), sh.ports, sh.n) != sh.index {
			continue
		}
		key.localPort = sh.ports
		if _, used := sh.sides[key]; !used {
			return sh.ports, true
		}
	}
	return 0, false
}

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
		a.finish(nil)
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
func (a *assoc) finish(err error) {
	if a.list == &a.sh.over {
		return
	}
	sh := a.sh
	a.endDial()
	a.phase = ended
	if a.choice.Valid() {
		a.meter.Tell(a.choice)
		a.choice.Done(err)
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
	a.finish(nil)
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
