package session

import (
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/lb"
)

// freeDials bounds the pool of one loop.
const freeDials = 256

// dial is what a connection needs only until its backend has answered.
type dial struct {
	sh     *Shard
	conn   *Conn
	timer  eventloop.Timer
	ladder Ladder
}

// Dial reaches for a backend: it calls Owner.Connect, also later on, and Owner.Abort if none is left to try.
func (sh *Shard) Dial(c *Conn, flow lb.Flow) {
	d := sh.newDial(c)
	d.ladder.Start(flow)
	d.next()
}

func (sh *Shard) newDial(c *Conn) *dial {
	var d *dial
	if n := len(sh.free); n > 0 {
		d, sh.free = sh.free[n-1], sh.free[:n-1]
	} else {
		d = &dial{sh: sh}
	}
	d.conn, c.dial = c, d
	sh.Count.Dialling.Add(1)
	return d
}

// Dialling reports whether the backend has not answered yet.
func (c *Conn) Dialling() bool { return c.dial != nil }

// endDial returns the dial state, if there is any.
func (sh *Shard) endDial(c *Conn) {
	d := c.dial
	if d == nil {
		return
	}
	c.dial, d.conn = nil, nil
	sh.Loop.StopTimer(&d.timer)
	sh.Count.Dialling.Add(-1)
	if len(sh.free) < freeDials {
		sh.free = append(sh.free, d)
	}
}

// next tries one backend after the other until a connect is under way or none is left to try.
func (d *dial) next() {
	sh, c := d.sh, d.conn
	for {
		choice, timeout, ok := d.ladder.Next(sh.Config, sh.Count)
		if !ok {
			c.owner.Abort()
			return
		}
		c.Choice = choice
		switch err := c.owner.Connect(); {
		case err == nil:
			sh.Loop.After(&d.timer, d, timeout)
			return
		case Shortage(err) && d.ladder.Short(sh.Count):
			c.owner.HangUp()
			c.Done(nil) // not the backend's fault
			sh.Loop.After(&d.timer, d, ShortageRetry)
			return
		default:
			sh.Count.DialRefused.Add(1)
			d.failed(err)
		}
	}
}

// failed ends an attempt.
func (d *dial) failed(err error) {
	d.ladder.Failed(d.conn.Choice)
	d.sh.Loop.StopTimer(&d.timer)
	d.conn.owner.HangUp()
	d.conn.Done(err)
}

// Expire ends an attempt that was not answered, or a wait for a local resource.
func (d *dial) Expire(*eventloop.Timer) {
	if d.conn.Choice.Valid() {
		d.sh.Count.DialTimedOut.Add(1)
		d.failed(unix.ETIMEDOUT)
	}
	d.next()
}

// Answered ends the dial: the backend has accepted.
func (sh *Shard) Answered(c *Conn) {
	sh.endDial(c)
	sh.Count.Established.Add(1)
}

// DialFailed is called when the connect has failed, and tries the next backend.
func (sh *Shard) DialFailed(c *Conn, err error) {
	sh.Count.DialRefused.Add(1)
	c.dial.failed(err)
	c.dial.next()
}

// Shortage reports whether a connect failed for lack of something of this host: ENOSPC means that its user watches too
// many descriptors already (epoll_ctl(2)). EADDRINUSE is SCTP's for all ports being used, which bind(2) and not
// connect(2) chooses.
func Shortage(err error) bool {
	errno, _ := errors.AsType[unix.Errno](err)
	switch errno {
	case unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM, unix.EADDRNOTAVAIL, unix.EADDRINUSE, unix.EAGAIN,
		unix.ENOSPC:
		return true
	}
	return false
}

// FreezeDial returns what another process needs to continue the dial of c. nil: the backend has answered.
func (sh *Shard) FreezeDial(c *Conn) *Dialling {
	if c.dial == nil {
		return nil
	}
	d := c.dial.ladder.Freeze()
	d.Left = sh.Loop.Left(&c.dial.timer)
	return &d
}

// ThawDial continues a dial that another process has frozen. service and backend are those of its choice, if
// there was one.
func (sh *Shard) ThawDial(c *Conn, from *Dialling, service lb.ID, backend netip.AddrPort) {
	d := sh.newDial(c)
	d.ladder.Thaw(sh.LB, from, service, backend)
	sh.Loop.After(&d.timer, d, from.Left)
}
