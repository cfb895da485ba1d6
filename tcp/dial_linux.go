package tcp

import (
	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/session"
	"github.com/sluice-lb/sluice/internal/socket"
)

// Connect starts to connect to the chosen backend (session.Owner).
func (c *conn) Connect() error {
	addr := c.Choice.Backend()
	fd, err := socket.New(addr.Addr(), unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	c.backend = side{Side: session.NewSide(c, fd), packs: true}
	if c.settled {
		_ = probe(fd) // it can fail only on what is no TCP socket
	}
	if err := socket.Connect(fd, addr); err != nil && err != unix.EINPROGRESS {
		return err
	}
	// Registered only now: an unconnected socket reports a hang-up (tcp_poll).
	return c.sh.Loop.Add(fd, &c.backend)
}

// Connected reports whether the backend has accepted (session.Owner).
func (c *conn) Connected() (bool, error) {
	fd, addr := c.backend.FD(), c.Choice.Backend()
	switch err := socket.Connect(fd, addr); err {
	case unix.EALREADY, unix.EINPROGRESS, unix.EINTR:
		return false, nil // an event meant for an earlier owner of this descriptor
	case nil, unix.EISCONN:
		if socket.SelfConnected(fd, addr) {
			return false, unix.ECONNREFUSED
		}
		return true, nil
	default:
		return false, err
	}
}
