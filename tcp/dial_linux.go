package tcp

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/socket"
	"github.com/sluice-lb/sluice/lb"
)

const (
	// shortageRetry is how long a dial waits for descriptors, ports or memory of
	// this host before it tries again, and maxShortages how often it does so.
	shortageRetry = 50 * time.Millisecond
	maxShortages  = 40

	// freeDials bounds the pool of one loop.
	freeDials = 256
)

// dial is what a connection needs only until its backend has answered.
type dial struct {
	c         *conn
	timer     eventloop.Timer
	flow      lb.Flow
	tried     lb.Tried
	attempt   int
	shortages int
}

func (c *conn) startDial(flow lb.Flow) {
	sh := c.sh
	var d *dial
	if n := len(sh.dials); n > 0 {
		d, sh.dials = sh.dials[n-1], sh.dials[:n-1]
		*d = dial{}
	} else {
		d = new(dial)
	}
	d.c, d.flow, c.dial = c, flow, d
	d.flow.Tried = &d.tried
	sh.count.dialling.Add(1)
	c.dialNext()
}

// endDial gives the dial state back, if there is any.
func (c *conn) endDial() {
	d, sh := c.dial, c.sh
	if d == nil {
		return
	}
	c.dial = nil
	sh.loop.StopTimer(&d.timer)
	sh.count.dialling.Add(-1)
	if len(sh.dials) < freeDials {
		sh.dials = append(sh.dials, d)
	}
}

// dialNext tries one backend after the other until a connect is under way or
// none is left to try.
func (c *conn) dialNext() {
	sh, d := c.sh, c.dial
	for timeouts := sh.srv.dialTimeouts(); d.attempt < len(timeouts); {
		choice, err := sh.srv.LB.Pick(d.flow)
		if err != nil {
			sh.count.reason(err).Add(1)
			c.abort()
			return
		}
		c.choice = choice
		switch err = c.connect(); {
		case err == nil:
			sh.loop.After(&d.timer, d, timeouts[d.attempt])
			return
		case local(err) && d.shortages < maxShortages:
			c.dropBackend(nil) // not the backend's fault
			d.shortages++
			sh.count.shortages.Add(1)
			sh.loop.After(&d.timer, d, shortageRetry)
			return
		}
		sh.count.dialRefused.Add(1)
		c.dialFailed(err)
	}
	sh.count.dialGaveUp.Add(1)
	c.abort()
}

// local reports whether a connect failed for want of something of this host: ENOSPC
// means that its user watches too many descriptors already (epoll_ctl(2)).
func local(err error) bool {
	errno, _ := errors.AsType[unix.Errno](err)
	switch errno {
	case unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM, unix.EADDRNOTAVAIL, unix.EAGAIN, unix.ENOSPC:
		return true
	}
	return false
}

// connect starts connecting to the chosen backend. nil: it is under way.
func (c *conn) connect() error {
	c.sh.count.dials.Add(1)
	addr := c.choice.Backend()
	fd, err := socket.New(addr.Addr(), unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	c.backend = side{c: c, fd: int32(fd), packs: true}
	if c.settled {
		_ = c.sh.srv.probe(fd) // it can fail only on what is no TCP socket
	}
	if err := socket.Connect(fd, addr); err != nil && err != unix.EINPROGRESS {
		return err
	}
	// Registered only now: an unconnected socket reports a hang-up (tcp_poll).
	return c.sh.loop.Add(fd, &c.backend)
}

// dialEvent looks what became of the connect.
func (c *conn) dialEvent() {
	err := socket.Connect(int(c.backend.fd), c.choice.Backend())
	if (err == nil || err == unix.EISCONN) && socket.SelfConnected(int(c.backend.fd), c.choice.Backend()) {
		err = unix.ECONNREFUSED
	}
	switch err {
	case unix.EALREADY, unix.EINPROGRESS, unix.EINTR:
		return // an event meant for an earlier owner of this descriptor
	case nil, unix.EISCONN:
		c.endDial()
		c.sh.count.established.Add(1)
		c.backend.writable = true
		c.relay(&c.client, &c.backend)
		if !c.closed {
			c.relay(&c.backend, &c.client)
		}
		return
	}
	c.sh.count.dialRefused.Add(1)
	c.dialFailed(err)
	c.dialNext()
}

// Expire ends an attempt that nobody answered, or a wait for a local resource.
func (d *dial) Expire(*eventloop.Timer) {
	c := d.c
	if c.choice.Valid() {
		c.sh.count.dialTimedOut.Add(1)
		c.dialFailed(unix.ETIMEDOUT)
	}
	c.dialNext()
}

// dialFailed ends the attempt and remembers the backend as tried.
func (c *conn) dialFailed(err error) {
	c.dial.tried.Add(c.choice)
	c.dial.attempt++
	c.dial.flow.Now = eventloop.Now()
	c.sh.loop.StopTimer(&c.dial.timer)
	c.dropBackend(err)
}

// dropBackend closes the backend's socket and settles the choice.
func (c *conn) dropBackend(err error) {
	if c.backend.fd >= 0 {
		if c.shared {
			_ = c.sh.loop.Detach(int(c.backend.fd)) // a copy of it may keep the socket open
		}
		_ = c.sh.loop.Close(int(c.backend.fd))
		c.backend.fd = -1
	}
	if c.choice.Valid() {
		c.meter.Tell(c.choice)
		c.choice.Done(err)
		c.choice = lb.Choice{}
	}
}
