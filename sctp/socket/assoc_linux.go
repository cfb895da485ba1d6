package socket

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/session"
	"github.com/sluice-lb/sluice/internal/socket"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/sctp/kernel"
)

const (
	// relayLimit is how many messages, or parts of them, one direction may move before the other descriptors of its
	// loop are served.
	relayLimit = 128

	// maxMessage bounds user messages, which the kernel takes whole, in bytes. A longer one ends its association.
	maxMessage = 1 << 20

	// maxStreams bounds the streams of a client's association, each way; the backend is asked for what the client
	// asked for within it. The kernel reserves memory for each at once.
	maxStreams = 1024
)

// assoc is one association with a client and one with its backend. It belongs to its shard's loop.
type assoc struct {
	session.Conn[*assoc]
	sh              *shard
	client, backend side
	streams         kernel.Status // of the client's association
	asked           lb.Frontend
}

// side is one of an assoc's two sockets. It also counts as Shut when the peer takes nothing any more.
type side struct {
	session.Side[*assoc]
	partial []byte      // what has come of a message so far
	whole   []byte      // a message that waits to be sent to this side, or nil
	with    kernel.Info // of whole
}

// Parts returns the shard and the sockets (session.Owner).
func (a *assoc) Parts() (*session.Shard[*assoc], *session.Side[*assoc], *session.Side[*assoc]) {
	return &a.sh.Shard, &a.client.Side, &a.backend.Side
}

// Relay moves messages to the backend, or to the client, until there are no more, no more are taken, or relayLimit is
// reached (session.Owner).
func (a *assoc) Relay(toBackend bool) {
	src, dst := &a.client, &a.backend
	if !toBackend {
		src, dst = dst, src
	}
	for range relayLimit {
		if !a.step(src, dst) {
			return
		}
	}
	if err := a.sh.Loop.Rearm(src.FD()); err != nil {
		src.Fail() // no event would report the rest
	}
}

// step moves one message or part, and reports whether there may be another.
func (a *assoc) step(src, dst *side) bool {
	switch {
	case dst.whole != nil:
		if !dst.Writable || !a.send(dst, dst.whole, dst.with) {
			return false
		}
		dst.whole = nil
		return true
	case src.EOF:
		if src.PassEOF(&dst.Side, src.whole != nil) {
			a.sh.count.Completed.Add(1)
			a.sh.End(a)
		}
		return false
	case !src.Readable || !dst.Writable:
		return false
	}
	buf := a.sh.Loop.Scratch
	got, err := kernel.Receive(src.FD(), buf)
	switch {
	case err == unix.EAGAIN:
		src.Readable = false
		return false
	case err != nil:
		src.Fail()
		return false
	case got.Notification:
		return a.notice(src, buf[:got.N])
	case got.N == 0:
		src.EOF = true
		return true
	}
	if src == &a.backend && !a.Spoken() {
		a.sh.Spoke(a)
	}
	return a.pass(src, dst, buf[:got.N], &got)
}

// pass sends a message that is whole, and keeps a part of one.
func (a *assoc) pass(src, dst *side, b []byte, got *kernel.Part) bool {
	if len(src.partial)+len(b) > maxMessage {
		a.sh.count.TooLong.Add(1)
		src.Fail()
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
	in, out := a.sh.count.Pass(dst == &a.backend, 1, len(b))
	a.sh.Moved(a.Base(), in, out)
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

// send sends a message to dst. False: it waits until dst takes more, or the association is closed.
func (a *assoc) send(dst *side, b []byte, with kernel.Info) bool {
	if dst.Shut {
		return true
	}
	switch err := kernel.Send(dst.FD(), b, with); err {
	case nil:
		return true
	case unix.EAGAIN:
		dst.Writable = false
		return false
	case unix.EPIPE, unix.ESHUTDOWN:
		// The peer has shut down: what is left is lost (RFC 9260 section 9.2).
		dst.Shut = true
		a.sh.count.SendErrors.Add(1)
		return true
	case unix.ECONNRESET, unix.ETIMEDOUT, unix.ENOTCONN:
		dst.Fail()
	default: // such as a stream that dst has not
		a.sh.count.SendErrors.Add(1)
		dst.Fail()
	}
	return false
}

// notice handles a notification, and reports whether relaying goes on.
func (a *assoc) notice(src *side, b []byte) bool {
	state, changed := kernel.Change(b)
	switch {
	case changed && state == kernel.ChangeShutdown:
		src.EOF = true // the only report to the side that began
	case changed && state == kernel.ChangeRestart && src == &a.client:
		a.restart()
		return false
	case changed && (state == kernel.ChangeLost || state == kernel.ChangeRestart):
		// A peer that has restarted has lost its state, and the other side would not notice.
		src.Fail()
		return false
	case !changed && kernel.PartialDeliveryEnded(b):
		src.partial = nil // the rest of the message will not come
	}
	return true
}

// restart serves the client of a as a new one, after it has restarted its association from the same port, and ends a.
func (a *assoc) restart() {
	sh := a.sh
	again := accepted{fd: a.client.Take(), frontend: a.asked}
	a.client.Fail()
	sh.count.Accepted.Add(1)
	sh.Descriptors.Adopt(2) // a has just given them back
	var err error
	if again.peer, err = socket.Peer(again.fd); err == nil {
		err = sh.post(again) // a may be made a new one only after this event
	}
	if err != nil {
		sh.Refuse(again.fd)
	}
}

// Reset aborts the association of a socket (session.Owner).
func (a *assoc) Reset(fd int) {
	socket.ResetOnClose(fd)
	if a.Shared {
		_ = kernel.Send(fd, nil, kernel.Info{Flags: kernel.FlagAbort}) // fails if it is over
	}
}

// Release has nothing to give back (session.Owner).
func (a *assoc) Release() {}

// Watch has nothing to do: clients are watched from the beginning (session.Owner).
func (a *assoc) Watch() error { return nil }

// Connect starts an association with the chosen backend, with the client's streams (session.Owner).
func (a *assoc) Connect() error {
	sh, to := a.sh, a.Choice.Backend()
	// From one address: an unbound socket would announce all of the host's to the backend.
	from, err := sh.source(to)
	if err != nil {
		return err
	}
	fd, err := socket.New(to.Addr(), unix.SOCK_STREAM, unix.IPPROTO_SCTP)
	if err != nil {
		return err
	}
	a.backend = side{Side: session.NewSide(a, fd)}
	if err := kernel.SetStreams(fd, a.streams.In, a.streams.Out); err != nil {
		return err
	}
	if err := kernel.SetOptions(fd, maxMessage); err != nil {
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
	return sh.Loop.Add(fd, &a.backend)
}

// Connected reports whether the backend has accepted (session.Owner). To connect again, as one does with
// TCP, would start another association after a failure.
func (a *assoc) Connected() (bool, error) {
	if err := socket.Failed(a.backend.FD()); err != nil {
		return false, err
	}
	// Before it is established an association cannot be asked for (sctp_id2assoc).
	if s, err := kernel.GetStatus(a.backend.FD()); err != nil || s.State < kernel.StatusEstablished {
		return false, nil // an event meant for an earlier owner of this descriptor
	}
	a.backend.Readable = true
	return true, nil
}
