package socket

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/socket"
	"github.com/sluice-lb/sluice/sctp/kernel"
)

// Connect starts an association with the chosen backend, with the streams that the
// client asked for and that can be passed on (session.Owner).
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
	a.backend = side{a: a, fd: fd}
	if err := kernel.SetStreams(fd, a.streams.In, a.streams.Out); err != nil {
		return err
	}
	if err := kernel.SetOptions(fd, sh.cfg.MaxMessage); err != nil {
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

// HangUp aborts the association with the backend (session.Owner).
func (a *assoc) HangUp() {
	a.backend.abort()
	a.backend.release()
}

// dialEvent checks the result of the connect. To connect again, as one does with
// TCP, would start another one after a failure.
func (a *assoc) dialEvent() {
	code, err := unix.GetsockoptInt(a.backend.fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err == nil && code != 0 {
		err = unix.Errno(code)
	}
	if err != nil {
		a.sh.DialFailed(&a.Conn, err)
		return
	}
	// Before it is established an association cannot be asked for (sctp_id2assoc).
	if s, err := kernel.GetStatus(a.backend.fd); err != nil || s.State < kernel.StatusEstablished {
		return // an event meant for an earlier owner of this descriptor
	}
	a.sh.Answered(&a.Conn)
	a.active = eventloop.Now()
	a.watch()
	a.backend.readable, a.backend.writable = true, true
	a.relay(&a.client, &a.backend)
	if !a.Closed {
		a.relay(&a.backend, &a.client)
	}
}
