package socket

import (
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/socket"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/sctp/kernel"
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
	if h.count.Dialling.Load() >= int64(h.cfg.MaxDials) {
		h.count.PausedDials.Add(1)
		d.pause()
		return false
	}
	if b := h.cfg.Descriptors; b != nil && !b.Take(2) {
		h.count.PausedDescriptors.Add(1)
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
		h.count.PausedDescriptors.Add(1)
	default:
		h.count.AcceptErrors.Add(1)
	}
	d.pause()
	return false
}

// arrival is an association that was accepted and is not served yet.
type arrival struct {
	fd       int
	frontend lb.Frontend
	peer     netip.AddrPort
}

// hand gives an accepted association to one loop after the other.
func (d *door) hand(fd int, peer netip.AddrPort) {
	h, a := d.hub, arrival{fd, d.frontend, peer}
	h.next++
	to := h.all.hubs[h.next%len(h.all.hubs)]
	h.count.Accepted.Add(1)
	if to == h || to.give(a) != nil {
		h.serve(a)
	}
}

// give has the hub's loop serve an association. It is called on another loop.
func (h *hub) give(a arrival) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	err := h.loop.Post(h.takeIn)
	if err == nil {
		h.arrivals = append(h.arrivals, a)
	}
	return err
}

// takeIn serves what has arrived from other loops.
func (h *hub) takeIn() {
	h.mu.Lock()
	all := h.arrivals
	h.arrivals = nil
	h.mu.Unlock()
	for _, a := range all {
		h.serve(a)
	}
}

func (h *hub) giveDescriptors() {
	if b := h.cfg.Descriptors; b != nil {
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

// newPair makes a pair with a client. It owns fd from now on.
func (h *hub) newPair(fd int) *pair {
	h.count.Active.Add(1)
	p := &pair{hub: h}
	p.client = end{p: p, fd: fd}
	p.backend = end{p: p, fd: -1}
	p.prev, p.next = h.pairs.prev, &h.pairs
	p.prev.next, p.next.prev = p, p
	return p
}

// serve starts to relay an accepted association, whose socket it owns from now on.
func (h *hub) serve(a arrival) {
	if h.stopped {
		socket.ResetOnClose(a.fd)
		_ = unix.Close(a.fd)
		h.giveDescriptors()
		return
	}
	p := h.newPair(a.fd)
	p.client.writable = true

	_ = kernel.SetHeartbeats(a.fd, a.peer) // fails if the client has gone, which is seen soon
	s, err := kernel.GetStatus(a.fd)
	if err == nil {
		err = h.loop.Add(a.fd, &p.client)
	}
	if err != nil {
		h.count.ClientAborts.Add(1)
		p.abort()
		return
	}
	p.dial = &redial{p: p, streams: s, flow: lb.Flow{Frontend: a.frontend, Client: a.peer.Addr(), Now: eventloop.Now()}}
	p.dial.flow.Tried = &p.dial.tried
	h.count.Dialling.Add(1)
	p.dialNext()
}
