package socket

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/socket"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/sctp/kernel"
)

// relayTurn is how many messages, or parts of them, one direction may move before the
// other descriptors of its loop have their turn.
const relayTurn = 128

// pair is one association with a client and one with its backend. It belongs to its
// hub's loop.
type pair struct {
	hub             *hub
	next, prev      *pair
	choice          lb.Choice
	meter           lb.Meter // of what choice has moved
	dial            *redial  // until the backend has answered
	idle            eventloop.Timer
	active          int64 // when it last passed a message
	client, backend end
	closed          bool
	shared          bool // others may have copies of the descriptors, so that closing them ends nothing
}

// end is one of a pair's two sockets. What it knows of the socket's readiness is a
// hint, corrected by the next EAGAIN.
type end struct {
	p        *pair
	fd       int         // -1 while there is none
	partial  []byte      // what has come of a message so far
	whole    []byte      // a message that waits to be sent to this end, or nil
	with     kernel.Info // of whole
	readable bool
	writable bool
	eof      bool // the peer has shut down and we have read all it sent
	shut     bool // we have shut down, or the peer takes nothing any more
}

// HandleEvent moves what can be moved in both directions.
func (e *end) HandleEvent(ev eventloop.Event) {
	p := e.p
	if ev&(eventloop.Readable|eventloop.Hangup) != 0 {
		e.readable = true
	}
	if ev&(eventloop.Writable|eventloop.Failed) != 0 {
		e.writable = true
	}
	if p.dial != nil {
		p.eventWhileDialling(e, ev)
		return
	}
	other := p.other(e)
	if e.readable {
		p.relay(e, other)
	}
	if !p.closed && e.writable && (e.whole != nil || other.readable || other.eof && !e.shut) {
		p.relay(other, e)
	}
	// An error that no read will meet: after the end of the association, or while the other side takes nothing.
	if ev&eventloop.Failed != 0 && !p.closed && (e.eof || !other.writable) && socket.Failed(e.fd) {
		p.fail(e)
	}
}

func (p *pair) other(e *end) *end {
	if e == &p.client {
		return &p.backend
	}
	return &p.client
}

func (p *pair) eventWhileDialling(e *end, ev eventloop.Event) {
	if e == &p.backend {
		p.dialEvent()
		return
	}
	// After an ABORT there is no client to dial for.
	if ev&eventloop.Failed != 0 && socket.Failed(e.fd) {
		p.fail(e)
	}
}

// relay moves messages from src to dst until src has no more, dst takes no more, or
// the turn is over.
func (p *pair) relay(src, dst *end) {
	for range relayTurn {
		if !p.step(src, dst) {
			return
		}
	}
	if err := p.hub.loop.Rearm(src.fd); err != nil {
		p.fail(src) // no event would tell us of the rest
	}
}

// step moves one message or part, and reports whether there may be another.
func (p *pair) step(src, dst *end) bool {
	switch {
	case dst.whole != nil:
		if !dst.writable || !p.send(dst, dst.whole, dst.with) {
			return false
		}
		dst.whole = nil
		return true
	case src.eof:
		p.passEnd(src, dst)
		return false
	case !src.readable || !dst.writable:
		return false
	}
	buf := p.hub.loop.Scratch()
	got, err := kernel.Receive(src.fd, buf)
	switch {
	case err == unix.EAGAIN:
		src.readable = false
		return false
	case err != nil:
		p.fail(src)
		return false
	case got.Notification:
		return p.notice(src, buf[:got.N])
	case got.N == 0:
		src.eof = true
		return true
	}
	return p.pass(src, dst, buf[:got.N], &got)
}

// pass sends a message that is whole, and keeps a part of one. The kernel takes
// only whole ones, so that a long one is put together here.
func (p *pair) pass(src, dst *end, b []byte, got *kernel.Part) bool {
	if len(src.partial)+len(b) > p.hub.cfg.MaxMessage {
		p.hub.count.TooLong.Add(1)
		p.fail(src)
		return false
	}
	if !got.End {
		src.partial = append(src.partial, b...)
		return true
	}
	kept := src.partial
	if len(kept) > 0 {
		b = append(kept, b...)
		src.partial = nil
	}
	p.count(dst, len(b))
	if p.send(dst, b, got.Info) {
		return true
	}
	if p.closed {
		return false
	}
	if len(kept) == 0 { // it lies in the loop's scratch
		b = append([]byte(nil), b...)
	}
	dst.whole, dst.with = b, got.Info
	return false
}

// count counts a message to dst.
func (p *pair) count(dst *end, n int) {
	p.active = eventloop.Now()
	if dst == &p.backend {
		p.hub.count.MessagesIn.Add(1)
		p.hub.count.BytesIn.Add(uint64(n))
		p.meter.Add(p.choice, n, 0)
	} else {
		p.hub.count.MessagesOut.Add(1)
		p.hub.count.BytesOut.Add(uint64(n))
		p.meter.Add(p.choice, 0, n)
	}
}

// send sends a message to dst. False: it waits until dst takes more, or the pair
// is closed.
func (p *pair) send(dst *end, b []byte, with kernel.Info) bool {
	if dst.shut {
		return true
	}
	switch err := kernel.Send(dst.fd, b, with); err {
	case nil:
		return true
	case unix.EAGAIN:
		dst.writable = false
		return false
	case unix.EPIPE, unix.ESHUTDOWN:
		// The peer has shut down, and SCTP has no half-open associations: nobody
		// takes what is left (RFC 9260 section 9.2).
		dst.shut = true
		p.hub.count.SendErrors.Add(1)
		return true
	case unix.ECONNRESET, unix.ETIMEDOUT, unix.ENOTCONN:
		p.fail(dst)
	default: // such as a stream that dst has not
		p.hub.count.SendErrors.Add(1)
		p.fail(dst)
	}
	return false
}

// notice sees to a notification, and reports whether relaying goes on.
func (p *pair) notice(src *end, b []byte) bool {
	state, changed := kernel.Change(b)
	switch {
	case changed && state == kernel.ChangeShutdown:
		src.eof = true // for the side that began, the only word of it
	case changed && (state == kernel.ChangeLost || state == kernel.ChangeRestart):
		// Who has started again has forgotten all, and the other end would not know.
		p.fail(src)
		return false
	case !changed && kernel.PartialDeliveryEnded(b):
		src.partial = nil // the rest of the message will not come
	}
	return true
}

// passEnd shuts dst down after the last message of src.
func (p *pair) passEnd(src, dst *end) {
	if dst.eof && src.whole == nil {
		p.hub.count.Completed.Add(1)
		p.close()
		return
	}
	if !dst.shut {
		dst.shut = true
		// It may fail if dst has gone meanwhile, which its own event will tell.
		_ = unix.Shutdown(dst.fd, unix.SHUT_WR)
	}
}

// fail ends the pair after an error at e: the other end is aborted.
func (p *pair) fail(e *end) {
	if e == &p.client {
		p.hub.count.ClientAborts.Add(1)
	} else {
		p.hub.count.BackendAborts.Add(1)
	}
	p.abort()
}

// abort aborts both associations.
func (p *pair) abort() {
	p.client.abort()
	p.backend.abort()
	p.close()
}

// abort aborts the end's association, if there is one: by the close of its socket, which
// is to follow.
func (e *end) abort() {
	if e.fd < 0 {
		return
	}
	socket.ResetOnClose(e.fd)
	if e.p.shared {
		_ = kernel.Send(e.fd, nil, kernel.Info{Flags: kernel.FlagAbort}) // fails if it is over
	}
}

// release closes the end's socket.
func (e *end) release() {
	if e.fd < 0 {
		return
	}
	if e.p.shared { // its close would not take it out of the loop
		_ = e.p.hub.loop.Detach(e.fd)
	}
	_ = e.p.hub.loop.Close(e.fd)
	e.fd = -1
}

// close ends the pair and gives back all it holds.
func (p *pair) close() {
	h := p.hub
	p.closed = true
	p.endDial()
	h.loop.StopTimer(&p.idle)
	p.dropBackend(nil)
	p.client.release()
	p.client.partial, p.client.whole, p.backend.partial, p.backend.whole = nil, nil, nil, nil
	p.prev.next, p.next.prev = p.next, p.prev
	p.next, p.prev = nil, nil
	h.giveDescriptors()
	h.count.Active.Add(-1)
	h.checkDrained()
}

// watch starts the idle timer, if there is a limit.
func (p *pair) watch() {
	if limit := p.hub.cfg.IdleTimeout; limit > 0 {
		p.hub.loop.After(&p.idle, p, limit)
	}
}

// Expire ends a pair that is idle.
func (p *pair) Expire(*eventloop.Timer) {
	if rest := p.active + int64(p.hub.cfg.IdleTimeout) - eventloop.Now(); rest > 0 {
		p.hub.loop.After(&p.idle, p, time.Duration(rest))
		return
	}
	p.hub.count.Expired.Add(1)
	p.abort()
}
