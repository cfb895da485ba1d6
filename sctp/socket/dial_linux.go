package socket

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/session"
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
	code, err := unix.GetsockoptInt(a.backend.FD(), unix.SOL_SOCKET, unix.SO_ERROR)
	if err == nil && code != 0 {
		err = unix.Errno(code)
	}
	if err != nil {
		return false, err
	}
	// Before it is established an association cannot be asked for (sctp_id2assoc).
	if s, err := kernel.GetStatus(a.backend.FD()); err != nil || s.State < kernel.StatusEstablished {
		return false, nil // an event meant for an earlier owner of this descriptor
	}
	a.backend.Readable = true
	return true, nil
}
