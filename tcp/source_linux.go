package tcp

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/session"
	"github.com/sluice-lb/sluice/internal/socket"
	"github.com/sluice-lb/sluice/lb"
)

// connect starts to connect to the chosen backend: from the client's own address where that is requested and works, and
// has a port left.
func (c *conn) connect() error {
	c.appear(false)
	if c.Choice.Policies().Transparent == lb.On && c.mayAppear() {
		err := c.connectFrom(true)
		if err != unix.EADDRNOTAVAIL || !c.transparent {
			return err
		}
		if c.Choice.Appeared() {
			return errClientPorts
		}
		_ = unix.Close(c.backend.FD())
		c.backend.Side = session.NewSide(c, -1)
		c.appear(false)
		c.sh.count.FromNode.Add(1)
	}
	return c.connectFrom(false)
}

// connectFrom makes a socket and starts to connect, from the client's own address or from this node's.
func (c *conn) connectFrom(client bool) error {
	addr := c.Choice.Backend()
	fd, err := socket.New(addr.Addr(), unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	c.backend = side{Side: session.NewSide(c, fd), packs: true, young: youth}
	if c.settled {
		_ = probe(fd) // it can fail only on what is no TCP socket
		c.probePolicies()
	}
	if client {
		c.fromClient(fd)
	}
	if err := socket.Connect(fd, addr); err != nil && err != unix.EINPROGRESS {
		return err
	}
	return nil
}

// errClientPorts says that a client has no port left towards a backend.
var errClientPorts = errors.New("no port of the client's address is free towards the endpoint")

// mayAppear reports whether the backend can see the client's own address, and counts if not. After an attempt that has
// failed it is not to: its answers may get lost, as by a bridge that passes them to the client. But where a client has
// appeared once they do not: then it may be a policy of the network that keeps a client out, and this node's address is
// no way around it.
func (c *conn) mayAppear() bool {
	client := c.Asked().Client
	there := &c.sh.srv.Transparent[0]
	if client.Is6() {
		there = &c.sh.srv.Transparent[1]
	}
	if (!c.Again() || c.Choice.Appeared()) && there.Load() && c.sh.LB.Transparent(c.Choice, client) {
		return true
	}
	c.sh.count.FromNode.Add(1)
	return false
}

// fromClient has a socket connect from the client's own address, unless this process may not.
func (c *conn) fromClient(fd int) {
	if socket.From(fd, c.Asked().Client) != nil {
		c.sh.count.FromNode.Add(1)
		return
	}
	c.sh.count.FromClient.Add(1)
	c.appear(true)
}

// appear notes whether the backend sees the client's own address.
func (c *conn) appear(transparent bool) {
	if c.transparent == transparent {
		return
	}
	c.Unjudged(transparent)
	if c.transparent = transparent; transparent {
		c.sh.count.Transparent.Add(1)
	} else {
		c.sh.count.Transparent.Add(-1)
	}
}
