package socket

import (
	"errors"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/socket"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/sctp/kernel"
)

const (
	// shortageRetry is how long a dial waits for descriptors, ports or memory of
	// this host before it tries again, and maxShortages how often it does so.
	shortageRetry = 50 * time.Millisecond
	maxShortages  = 40
)

// redial is what a pair needs only until its backend has answered.
type redial struct {
	p         *pair
	timer     eventloop.Timer
	flow      lb.Flow
	tried     lb.Tried
	streams   kernel.Status // of the client's association
	attempt   int
	shortages int
}

// endDial gives the dial state up, if there is any.
func (p *pair) endDial() {
	if p.dial == nil {
		return
	}
	p.hub.loop.StopTimer(&p.dial.timer)
	p.dial = nil
	p.hub.count.Dialling.Add(-1)
}

// dialNext tries one backend after the other until a connect is under way or none
// is left to try.
func (p *pair) dialNext() {
	h, d := p.hub, p.dial
	for timeouts := h.cfg.DialTimeouts; d.attempt < len(timeouts); {
		choice, err := h.cfg.LB.Pick(d.flow)
		if err != nil {
			h.count.Refused(err)
			p.abort()
			return
		}
		p.choice = choice
		switch err = p.connect(); {
		case err == nil:
			h.loop.After(&d.timer, d, timeouts[d.attempt])
			return
		case shortage(err) && d.shortages < maxShortages:
			p.dropBackend(nil) // not the backend's fault
			d.shortages++
			h.count.Shortages.Add(1)
			h.loop.After(&d.timer, d, shortageRetry)
			return
		}
		h.count.DialRefused.Add(1)
		p.dialFailed(err)
	}
	h.count.DialGaveUp.Add(1)
	p.abort()
}

// shortage reports whether a connect failed for want of something of this host: ENOSPC
// means that its user watches too many descriptors already (epoll_ctl(2)).
func shortage(err error) bool {
	errno, _ := errors.AsType[unix.Errno](err)
	switch errno {
	case unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM, unix.EADDRNOTAVAIL, unix.EADDRINUSE, unix.EAGAIN, unix.ENOSPC:
		return true
	}
	return false
}

// connect starts an association with the chosen backend, with the streams that the
// client wants and we can pass on. nil: it is under way.
func (p *pair) connect() error {
	h, to := p.hub, p.choice.Backend()
	h.count.Dials.Add(1)
	// From one address: an unbound socket would tell the backend all of the host's.
	from, err := h.source(to)
	if err != nil {
		return err
	}
	fd, err := socket.New(to.Addr(), unix.SOCK_STREAM, unix.IPPROTO_SCTP)
	if err != nil {
		return err
	}
	p.backend = end{p: p, fd: fd}
	if err := kernel.SetStreams(fd, p.dial.streams.In, p.dial.streams.Out); err != nil {
		return err
	}
	if err := kernel.SetOptions(fd, h.cfg.MaxMessage); err != nil {
		return err
	}
	if err := socket.Bind(fd, netip.AddrPortFrom(from, 0)); err != nil {
		return err
	}
	if from == to.Addr() && socket.SelfConnected(fd, to) { // the port that it was given is the backend's own
		return unix.ECONNREFUSED
	}
	if err := socket.Connect(fd, to); err != nil && err != unix.EINPROGRESS {
		return err
	}
	return h.loop.Add(fd, &p.backend)
}

// dialEvent looks what became of the connect. To connect again, as one does with
// TCP, would begin another one after a failure.
func (p *pair) dialEvent() {
	code, err := unix.GetsockoptInt(p.backend.fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err == nil && code != 0 {
		err = unix.Errno(code)
	}
	if err != nil {
		p.hub.count.DialRefused.Add(1)
		p.dialFailed(err)
		p.dialNext()
		return
	}
	// Before it is established an association cannot be asked for (sctp_id2assoc).
	if s, err := kernel.GetStatus(p.backend.fd); err != nil || s.State < kernel.StatusEstablished {
		return // an event meant for an earlier owner of this descriptor
	}
	p.endDial()
	p.hub.count.Established.Add(1)
	p.active = eventloop.Now()
	p.watch()
	p.backend.readable, p.backend.writable = true, true
	p.relay(&p.client, &p.backend)
	if !p.closed {
		p.relay(&p.backend, &p.client)
	}
}

// Expire ends an attempt that nobody answered, or a wait for a local resource.
func (d *redial) Expire(*eventloop.Timer) {
	p := d.p
	if p.choice.Valid() {
		p.hub.count.DialTimedOut.Add(1)
		p.dialFailed(unix.ETIMEDOUT)
	}
	p.dialNext()
}

// dialFailed ends the attempt and remembers the backend as tried.
func (p *pair) dialFailed(err error) {
	d := p.dial
	d.tried.Add(p.choice)
	d.attempt++
	d.flow.Now = eventloop.Now()
	p.hub.loop.StopTimer(&d.timer)
	p.backend.abort()
	p.dropBackend(err)
}

// dropBackend closes the backend's socket and settles the choice.
func (p *pair) dropBackend(err error) {
	p.backend.release()
	if p.choice.Valid() {
		p.meter.Tell(p.choice)
		p.choice.Done(err)
		p.choice = lb.Choice{}
	}
}
