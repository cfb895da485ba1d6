package session

import (
	"net/netip"
	"time"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/look"
	"github.com/sluice-lb/sluice/internal/socket"
	"github.com/sluice-lb/sluice/lb"
)

// What is logged of a connection when it ends is noted while it dials, as part of the dial, and in Shard.notes from
// then on: only of connections that are logged.

// beginning is what is noted of a dial.
type beginning struct {
	accepted int64         // time; 0: in another process
	began    int64         // of the present wait; 0: there is none
	wait     time.Duration // so far
	silent   bool          // so was the last endpoint that failed
	held     bool          // it has waited for an endpoint, and not tried one since
}

// note is what is logged of a connection beyond what there is to look at.
type note struct {
	beginning
	connected int64         // time; 0: in another process
	firstByte time.Duration // below 0: it has not come
	why       lb.Why
	errors    bool      // only errors are logged
	info      look.Info // as of the beginning
	tried     []netip.AddrPort
}

// waits notes that a wait begins, for an endpoint or for room at one.
func (n *beginning) waits() { n.began = eventloop.Now() }

func (n *beginning) waited() {
	if n.began != 0 {
		n.wait += time.Duration(eventloop.Now() - n.began)
	}
	n.began = 0
}

// because notes why c ends next, in the same call. The first reason holds.
func (sh *Shard[C]) because(c C, end lb.End) {
	if c.Base().dial != nil {
		switch end {
		case lb.ClientData:
			end = lb.ClientConnect
		case lb.Killed:
			end = lb.KilledInConnect
		}
	}
	if sh.ending == lb.Normal {
		sh.ending = end
	}
}

// keepNote notes that the backend has accepted, if the connection is logged.
func (d *dial[C]) keepNote(now int64) {
	sh, conn := d.sh, d.owner.Base()
	some, onlyErrors := conn.Choice.Policies().Logs()
	if !some {
		return
	}
	n := sh.newNote(d.owner, onlyErrors)
	n.beginning, n.connected, n.info = d.note, now, sh.asked(d)
	n.info.Backend = conn.Choice.Backend()
	if n.why = d.ladder.why; n.held {
		n.why = lb.ByHold
	}
	if d.ladder.attempt > 0 {
		n.tried = d.ladder.tried.Backends()
	}
}

// connectTime returns for how long d has dialled, its waits left out.
func (d *dial[C]) connectTime(now int64) time.Duration {
	if d.note.accepted == 0 { // in another process, which has not said how long it has waited
		return d.owner.Base().born.Age(now) - d.note.wait
	}
	return time.Duration(now-d.note.accepted) - d.note.wait
}

// newNote returns that of a connection, which may be logged only if it does not end as it should.
func (sh *Shard[C]) newNote(c C, onlyErrors bool) *note {
	if sh.notes == nil {
		sh.notes = make(map[C]*note)
	}
	n := reuse(&sh.freeNotes)
	if n == nil {
		n = new(note)
	}
	*n = note{firstByte: -1, errors: onlyErrors || !sh.sample.Next(sh.LogSample)}
	sh.notes[c] = n
	return n
}

// asked says what the client of a dial has asked for.
func (sh *Shard[C]) asked(d *dial[C]) look.Info {
	flow := &d.ladder.flow
	i := look.Info{Protocol: flow.Frontend.Protocol, Client: netip.AddrPortFrom(flow.Client, flow.ClientPort),
		Asked: flow.Frontend.Addr, Failed: d.ladder.attempt}
	if owner := sh.LB.Table().Owner(flow.Frontend); owner != nil {
		i.Service = *owner
	}
	return i
}

// resumeNote begins to note what is logged of a connection that another process has had.
func (sh *Shard[C]) resumeNote(c C, peer netip.AddrPort, why lb.Why) {
	conn := c.Base()
	some, onlyErrors := conn.Choice.Policies().Logs()
	if sh.Log == nil || conn.dial != nil || !some {
		return
	}
	n := sh.newNote(c, onlyErrors)
	n.why = why
	c.Describe(&n.info)
	n.info.Protocol = conn.Choice.Service().Protocol
	n.info.Client, n.info.Service, n.info.Backend = peer, conn.Choice.Service(), conn.Choice.Backend()
}

// log logs a connection that ends, if its Service requests that.
func (sh *Shard[C]) log(c C, end lb.End) {
	conn := c.Base()
	n := sh.notes[c]
	if d := conn.dial; d != nil {
		if some, _ := sh.LB.Policies(d.ladder.flow.Frontend).Logs(); !some {
			return
		}
		d.note.waited()
		n = &note{beginning: d.note, info: sh.asked(d), tried: d.ladder.tried.Backends(), firstByte: -1}
	}
	if n == nil {
		return
	}
	if conn.dial == nil {
		delete(sh.notes, c)
		defer keep(&sh.freeNotes, n)
	}
	if !n.errors || end != lb.Normal {
		sh.logNoted(c, end, n)
	}
}

// logNoted logs a connection that ends. It is a function of its own since what it logs is allocated: most connections
// are not logged.
func (sh *Shard[C]) logNoted(c C, end lb.End, n *note) {
	conn, now := c.Base(), eventloop.Now()
	e := look.Ended{Info: n.info, End: end, Wait: -1, Connect: -1, FirstByte: -1}
	if conn.dial == nil {
		c.Describe(&e.Info)
		e.Why = n.why
	}
	e.Loop, e.Age, e.Tried, e.FirstByte = sh.Loop.Index(), conn.born.Age(now), n.tried, n.firstByte
	e.In, e.Out = conn.Meter.Total()
	if n.accepted != 0 {
		e.Age, e.Wait = time.Duration(now-n.accepted), n.wait
		if n.connected != 0 {
			e.Connect = time.Duration(n.connected-n.accepted) - n.wait
		}
	}
	sh.Log(&e)
}

// logRefused logs a client that was refused when it came.
func (sh *Shard[C]) logRefused(fd int, frontend lb.Frontend) {
	if some, _ := sh.LB.Policies(frontend).Logs(); !some {
		return
	}
	e := look.Ended{End: sh.claims.Refused, Wait: -1, Connect: -1, FirstByte: -1}
	e.Protocol, e.Asked, e.Loop = frontend.Protocol, frontend.Addr, sh.Loop.Index()
	e.Client, _ = socket.Peer(fd) // it may have gone
	if owner := sh.LB.Table().Owner(frontend); owner != nil {
		e.Service = *owner
	}
	sh.Log(&e)
}
