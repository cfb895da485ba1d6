package sctp

import (
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/socket"
	"github.com/sluice-lb/sluice/lb"
)

const (
	// backlog is how many associations wait to be accepted; the kernel caps it at
	// net.core.somaxconn (listen(2)).
	backlog = 4096

	// acceptTurn is how many associations one door may accept before the other
	// descriptors of its loop have their turn.
	acceptTurn = 64

	// acceptRetry is how often a paused loop looks whether it may accept again.
	acceptRetry = 10 * time.Millisecond
)

// door is one listening socket.
type door struct {
	hub      *hub
	fd       int
	frontend lb.Frontend
	paused   bool // has, or may have, associations that could not be taken yet
}

func (d *door) start() error {
	d.hub.open[d] = struct{}{}
	return d.hub.loop.AddRead(d.fd, d)
}

// shut takes what the kernel has completed and closes the socket.
func (d *door) shut() {
	if err := d.hub.loop.Do(func() {
		for range backlog { // bounded: new ones may keep coming
			if !d.accept() {
				break
			}
		}
		delete(d.hub.open, d)
		_ = d.hub.loop.Close(d.fd)
	}); err != nil {
		_ = unix.Close(d.fd) // the loop is gone, so nobody else has it
	}
}

// HandleEvent accepts what is there.
func (d *door) HandleEvent(eventloop.Event) {
	for range acceptTurn {
		if !d.accept() {
			return
		}
	}
	if err := d.hub.loop.RearmRead(d.fd); err != nil {
		d.pause() // no event would tell us of the rest
	}
}

// accept takes one association and reports whether there may be more right now.
func (d *door) accept() bool {
	h := d.hub
	if h.count.dialling.Load() >= h.srv.maxDials() {
		h.count.pausedDials.Add(1)
		d.pause()
		return false
	}
	if b := h.srv.Descriptors; b != nil && !b.Take(2) {
		h.count.pausedDescriptors.Add(1)
		d.pause()
		return false
	}
	fd, peer, err := socket.Accept(d.fd)
	if err == nil {
		d.hand(fd, peer)
		return true
	}
	h.giveDescriptors()
	switch err {
	case unix.EAGAIN:
		return false
	case unix.ECONNABORTED, unix.EINTR, unix.EPROTO:
		return true // this one has gone; accept(2) says to try again
	case unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM:
		h.count.pausedDescriptors.Add(1)
	default:
		h.count.acceptErrors.Add(1)
	}
	d.pause()
	return false
}

// hand gives an accepted association to one loop after the other.
func (d *door) hand(fd int, peer netip.AddrPort) {
	h, frontend := d.hub, d.frontend
	h.next++
	to := h.all.hubs[h.next%len(h.all.hubs)]
	h.count.accepted.Add(1)
	if to == h || to.loop.Post(func() { to.serve(fd, frontend, peer) }) != nil {
		h.serve(fd, frontend, peer)
	}
}

func (h *hub) giveDescriptors() {
	if b := h.srv.Descriptors; b != nil {
		b.Give(2)
	}
}

// pause leaves the clients in the backlog and has the loop look again soon. A timer
// and not the end of an association wakes it: what frees descriptors may belong to
// another loop or another protocol.
func (d *door) pause() {
	d.paused = true
	if !d.hub.retry.Active() {
		d.hub.loop.After(&d.hub.retry, d.hub, acceptRetry)
	}
}

// Expire accepts again at the paused doors.
func (h *hub) Expire(*eventloop.Timer) {
	for d := range h.open {
		if d.paused {
			d.paused = false
			d.HandleEvent(eventloop.Readable)
		}
	}
}

// serve starts to relay an accepted association. It owns fd from now on.
func (h *hub) serve(fd int, frontend lb.Frontend, peer netip.AddrPort) {
	if h.stopped {
		socket.ResetOnClose(fd)
		_ = unix.Close(fd)
		h.giveDescriptors()
		return
	}
	h.count.active.Add(1)
	p := &pair{hub: h}
	p.client = end{p: p, fd: fd, writable: true}
	p.backend = end{p: p, fd: -1}
	p.prev, p.next = h.pairs.prev, &h.pairs
	p.prev.next, p.next.prev = p, p

	_ = setHeartbeats(fd, peer) // fails if the client has gone, which is seen soon
	s, err := kernelStatus(fd)
	if err == nil {
		err = h.loop.Add(fd, &p.client)
	}
	if err != nil {
		h.count.clientAborts.Add(1)
		p.abort()
		return
	}
	p.dial = &redial{p: p, streams: s, flow: lb.Flow{Frontend: frontend, Client: peer.Addr(), Now: eventloop.Now()}}
	p.dial.flow.Tried = &p.dial.tried
	h.count.dialling.Add(1)
	p.dialNext()
}
