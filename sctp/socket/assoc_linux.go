package socket

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/session"
	"github.com/sluice-lb/sluice/internal/socket"
	"github.com/sluice-lb/sluice/sctp/kernel"
)

// relayLimit is how many messages, or parts of them, one direction may move before the
// other descriptors of its loop are served.
const relayLimit = 128

// assoc is one association with a client and one with its backend. It belongs to its
// shard's loop.
type assoc struct {
	session.Conn
	sh              *shard
	client, backend side
	streams         kernel.Status // of the client's association
	idle            eventloop.Timer
	active          int64 // when it last passed a message
}

// side is one of an assoc's two sockets. What it knows of the socket's readiness is a
// hint, corrected by the next EAGAIN.
type side struct {
	a        *assoc
	fd       int         // -1 while there is none
	partial  []byte      // what has come of a message so far
	whole    []byte      // a message that waits to be sent to this side, or nil
	with     kernel.Info // of whole
	readable bool
	writable bool
	eof      bool // the peer has shut down and we have read all it sent
	shut     bool // we have shut down, or the peer takes nothing any more
}

// HandleEvent moves what can be moved in both directions.
func (s *side) HandleEvent(ev eventloop.Event) {
	a := s.a
	if ev&(eventloop.Readable|eventloop.Hangup) != 0 {
		s.readable = true
	}
	if ev&(eventloop.Writable|eventloop.Failed) != 0 {
		s.writable = true
	}
	if a.Dialling() {
		a.eventWhileDialling(s, ev)
		return
	}
	other := a.other(s)
	if s.readable {
		a.relay(s, other)
	}
	if !a.Closed && s.writable && (s.whole != nil || other.readable || other.eof && !s.shut) {
		a.relay(other, s)
	}
	// An error that no read will meet: after the end of the association, or while the other side takes nothing.
	if ev&eventloop.Failed != 0 && !a.Closed && (s.eof || !other.writable) && socket.Failed(s.fd) {
		a.fail(s)
	}
}

func (a *assoc) other(s *side) *side {
	if s == &a.client {
		return &a.backend
	}
	return &a.client
}

func (a *assoc) eventWhileDialling(s *side, ev eventloop.Event) {
	switch {
	case s == &a.backend:
		a.dialEvent()
	case ev&eventloop.Failed != 0 && socket.Failed(s.fd): // there is no client to dial for any more
		a.fail(s)
	}
}

// relay moves messages from src to dst until src has no more, dst takes no more, or
// relayLimit is reached.
func (a *assoc) relay(src, dst *side) {
	for range relayLimit {
		if !a.step(src, dst) {
			return
		}
	}
	if err := a.sh.Loop.Rearm(src.fd); err != nil {
		a.fail(src) // no event would report the rest
	}
}

// step moves one message or part, and reports whether there may be another.
func (a *assoc) step(src, dst *side) bool {
	switch {
	case dst.whole != nil:
		if !dst.writable || !a.send(dst, dst.whole, dst.with) {
			return false
		}
		dst.whole = nil
		return true
	case src.eof:
		a.passEnd(src, dst)
		return false
	case !src.readable || !dst.writable:
		return false
	}
	buf := a.sh.Loop.Scratch()
	got, err := kernel.Receive(src.fd, buf)
	switch {
	case err == unix.EAGAIN:
		src.readable = false
		return false
	case err != nil:
		a.fail(src)
		return false
	case got.Notification:
		return a.notice(src, buf[:got.N])
	case got.N == 0:
		src.eof = true
		return true
	}
	return a.pass(src, dst, buf[:got.N], &got)
}

// pass sends a message that is whole, and keeps a part of one. The kernel takes
// only whole ones, so that a long one is put together here.
func (a *assoc) pass(src, dst *side, b []byte, got *kernel.Part) bool {
	if len(src.partial)+len(b) > a.sh.cfg.MaxMessage {
		a.sh.count.TooLong.Add(1)
		a.fail(src)
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
	a.count(dst, len(b))
	if a.send(dst, b, got.Info) {
		return true
	}
	if a.Closed {
		return false
	}
	if len(kept) == 0 { // it lies in the loop's scratch
		b = append([]byte(nil), b...)
	}
	dst.whole, dst.with = b, got.Info
	return false
}

// count counts a message to dst.
func (a *assoc) count(dst *side, n int) {
	a.active = eventloop.Now()
	if dst == &a.backend {
		a.sh.count.MessagesIn.Add(1)
		a.sh.count.BytesIn.Add(uint64(n))
		a.Meter.Add(a.Choice, n, 0)
	} else {
		a.sh.count.MessagesOut.Add(1)
		a.sh.count.BytesOut.Add(uint64(n))
		a.Meter.Add(a.Choice, 0, n)
	}
}

// send sends a message to dst. False: it waits until dst takes more, or the association
// is closed.
func (a *assoc) send(dst *side, b []byte, with kernel.Info) bool {
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
		// The peer has shut down, and SCTP has no half-open associations: what
		// is left is lost (RFC 9260 section 9.2).
		dst.shut = true
		a.sh.count.SendErrors.Add(1)
		return true
	case unix.ECONNRESET, unix.ETIMEDOUT, unix.ENOTCONN:
		a.fail(dst)
	default: // such as a stream that dst has not
		a.sh.count.SendErrors.Add(1)
		a.fail(dst)
	}
	return false
}

// notice handles a notification, and reports whether relaying goes on.
func (a *assoc) notice(src *side, b []byte) bool {
	state, changed := kernel.Change(b)
	switch {
	case changed && state == kernel.ChangeShutdown:
		src.eof = true // the only report to the side that began
	case changed && (state == kernel.ChangeLost || state == kernel.ChangeRestart):
		// A peer that has restarted has lost its state, and the other side would not notice.
		a.fail(src)
		return false
	case !changed && kernel.PartialDeliveryEnded(b):
		src.partial = nil // the rest of the message will not come
	}
	return true
}

// passEnd shuts dst down after the last message of src.
func (a *assoc) passEnd(src, dst *side) {
	if dst.eof && src.whole == nil {
		a.sh.count.Completed.Add(1)
		a.close()
		return
	}
	if !dst.shut {
		dst.shut = true
		// It may fail if dst has gone meanwhile, which its own event reports.
		_ = unix.Shutdown(dst.fd, unix.SHUT_WR)
	}
}

// fail ends the association after an error at s: the other side is aborted.
func (a *assoc) fail(s *side) {
	if s == &a.client {
		a.sh.count.ClientAborts.Add(1)
	} else {
		a.sh.count.BackendAborts.Add(1)
	}
	a.Abort()
}

// Abort aborts both associations (session.Owner).
func (a *assoc) Abort() {
	a.client.abort()
	a.backend.abort()
	a.close()
}

// abort makes the close of the side's socket, if there is one, abort its association.
func (s *side) abort() {
	if s.fd < 0 {
		return
	}
	socket.ResetOnClose(s.fd)
	if s.a.Shared {
		_ = kernel.Send(s.fd, nil, kernel.Info{Flags: kernel.FlagAbort}) // fails if it is over
	}
}

// release closes the side's socket and gives back all it holds.
func (s *side) release() {
	if s.fd >= 0 {
		s.a.sh.CloseSocket(&s.a.Conn, s.fd)
	}
	s.fd, s.partial, s.whole = -1, nil, nil
}

// close ends the association and gives back all it holds.
func (a *assoc) close() {
	a.sh.Loop.StopTimer(&a.idle)
	a.client.release()
	a.backend.release()
	a.sh.End(&a.Conn)
}

// watch starts the idle timer, if there is a limit.
func (a *assoc) watch() {
	if limit := a.sh.cfg.IdleTimeout; limit > 0 {
		a.sh.Loop.After(&a.idle, a, limit)
	}
}

// Expire ends an association that is idle.
func (a *assoc) Expire(*eventloop.Timer) {
	if rest := a.active + int64(a.sh.cfg.IdleTimeout) - eventloop.Now(); rest > 0 {
		a.sh.Loop.After(&a.idle, a, time.Duration(rest))
		return
	}
	a.sh.count.Expired.Add(1)
	a.Abort()
}
