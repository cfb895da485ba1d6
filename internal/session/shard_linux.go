package session

import (
	"iter"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/lb"
)

// Shard is the part of a server that lives on one loop. Its methods run on the loop.
type Shard struct {
	*Config
	Loop  *eventloop.Loop
	Count *Counters
	Drain eventloop.Drain

	// OnShort releases descriptors that are kept for later, when none is left. nil: there are none.
	OnShort func()

	conns     Conn // head of the list of connections, oldest first
	listeners map[*Listener]struct{}
	retry     eventloop.Timer // runs while accepting is paused
	free      []*dial
}

// Init makes the Shard ready.
func (sh *Shard) Init(config *Config, loop *eventloop.Loop, count *Counters) {
	sh.Config, sh.Loop, sh.Count = config, loop, count
	sh.listeners = make(map[*Listener]struct{})
	sh.conns.next, sh.conns.prev = &sh.conns, &sh.conns
}

// Owner is a protocol's connection, which embeds a Conn.
type Owner interface {
	// Connect starts to connect to the backend of Conn.Choice, and to watch the socket. nil: it is under way.
	Connect() error
	// HangUp closes the backend's socket, if there is one, after an attempt that failed.
	HangUp()
	// Abort resets both sides, closes their sockets and calls Shard.End.
	Abort()
}

// Conn is what every proxied connection has. It belongs to its Shard's loop.
type Conn struct {
	owner      Owner
	next, prev *Conn
	dial       *dial // until the backend has answered
	Choice     lb.Choice
	Meter      lb.Meter // of what Choice has moved
	Shared     bool     // another process may have copies of the sockets, so that closing them ends nothing
	Closed     bool
}

// Insert puts a new connection at the end of the list. Two descriptors are its own from now on.
func (sh *Shard) Insert(c *Conn, owner Owner) {
	c.owner = owner
	sh.Count.Active.Add(1)
	sh.link(c, sh.conns.prev)
}

// link puts c behind another one.
func (sh *Shard) link(c, behind *Conn) {
	c.prev, c.next = behind, behind.next
	c.prev.next, c.next.prev = c, c
}

// MoveToFront makes c the oldest of the list.
func (sh *Shard) MoveToFront(c *Conn) {
	c.prev.next, c.next.prev = c.next, c.prev
	sh.link(c, &sh.conns)
}

// Next returns the one behind c, nil if c is the last.
func (sh *Shard) Next(c *Conn) *Conn {
	if c.next == &sh.conns {
		return nil
	}
	return c.next
}

// Owner returns what embeds c.
func (c *Conn) Owner() Owner { return c.owner }

// All returns the connections, oldest first. One may end while it is visited.
func (sh *Shard) All() iter.Seq[Owner] {
	return func(yield func(Owner) bool) {
		for c := sh.conns.next; c != &sh.conns; {
			next := c.next
			if !yield(c.owner) {
				return
			}
			c = next
		}
	}
}

// Backward returns the connections, newest first. None may end meanwhile.
func (sh *Shard) Backward() iter.Seq[Owner] {
	return func(yield func(Owner) bool) {
		for c := sh.conns.prev; c != &sh.conns && yield(c.owner); c = c.prev {
		}
	}
}

// Empty reports whether there are no connections.
func (sh *Shard) Empty() bool { return sh.conns.next == &sh.conns }

// AbortAll aborts every connection.
func (sh *Shard) AbortAll() {
	for !sh.Empty() {
		sh.conns.next.owner.Abort()
	}
}

// CloseSocket closes a socket of c.
func (sh *Shard) CloseSocket(c *Conn, fd int) {
	if c.Shared {
		_ = sh.Loop.Detach(fd) // a copy of it may keep the socket open
	}
	_ = sh.Loop.Close(fd)
}

// Done returns the choice, with how its backend has done.
func (c *Conn) Done(err error) {
	if c.Choice.Valid() {
		c.Meter.Flush(c.Choice)
		c.Choice.Done(err)
		c.Choice = lb.Choice{}
	}
}

// End is the last of a connection, whose sockets are closed.
func (sh *Shard) End(c *Conn) {
	c.Closed = true
	sh.endDial(c)
	c.Done(nil)
	c.prev.next, c.next.prev = c.next, c.prev
	c.next, c.prev = nil, nil
	sh.GiveDescriptors()
	sh.Count.Active.Add(-1)
	sh.Drain.Check(sh.Empty())
}

// GiveDescriptors returns those of one connection.
func (sh *Shard) GiveDescriptors() {
	if sh.Descriptors != nil {
		sh.Descriptors.Give(2)
	}
}
