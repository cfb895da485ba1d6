package tcp

import (
	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/socket"
)

// Connect starts to connect to the chosen backend (session.Owner).
func (c *conn) Connect() error {
	addr := c.Choice.Backend()
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
	return c.sh.Loop.Add(fd, &c.backend)
}

// HangUp closes the backend's socket (session.Owner).
func (c *conn) HangUp() { c.closeSocket(&c.backend) }

// dialEvent checks the result of the connect.
func (c *conn) dialEvent() {
	err := socket.Connect(int(c.backend.fd), c.Choice.Backend())
	if (err == nil || err == unix.EISCONN) && socket.SelfConnected(int(c.backend.fd), c.Choice.Backend()) {
		err = unix.ECONNREFUSED
	}
	switch err {
	case unix.EALREADY, unix.EINPROGRESS, unix.EINTR:
		return // an event meant for an earlier owner of this descriptor
	case nil, unix.EISCONN:
	default:
		c.sh.DialFailed(&c.Conn, err)
		return
	}
	c.sh.Answered(&c.Conn)
	c.backend.writable = true
	c.relay(&c.client, &c.backend)
	if !c.Closed {
		c.relay(&c.backend, &c.client)
	}
}
