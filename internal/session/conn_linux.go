package session

import (
	"time"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/look"
	"github.com/sluice-lb/sluice/internal/socket"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

// Owner is a protocol's connection: a pointer to a struct that embeds a Conn of it.
type Owner[C Owner[C]] interface {
	comparable
	// Base returns the connection's Conn.
	Base() *Conn[C]

	// Parts returns the shard of the connection and its sockets.
	Parts() (sh *Shard[C], client, backend *Side[C])
	// Watch has the client's socket watched, unless it is already.
	Watch() error
	// Connect starts to connect to the backend of Conn.Choice, and to watch the sockets. nil: it is under way.
	Connect() error
	// Connected reports whether the backend has accepted. An error says why it will not.
	Connected() (bool, error)
	// Relay moves what can be moved, to the backend or to the client.
	Relay(toBackend bool)
	// Reset makes sure that the peer of a socket, which is closed next, is reset.
	Reset(fd int)
	// Describe adds to i what only the protocol knows of an established connection.
	Describe(i *look.Info)
	// Release gives back what the connection holds besides its sockets, which are closed next.
	Release()
}

// Conn is what every proxied connection has. It belongs to its Shard's loop.
type Conn[C Owner[C]] struct {
	next, prev C
	dial       *dial[C] // until the backend has answered
	Claim      Claim
	Choice     balancer.Choice
	Meter      balancer.Meter // of what Choice has moved
	born       look.Time
	marks      marks
	Shared     bool // another process may have copies of the sockets, so that closing them ends nothing
	Closed     bool
}

// marks are those that a connection has: it is to be small.
type marks uint8

const (
	spoke    marks = 1 << 7 // the backend has sent something
	unjudged marks = 1 << 6 // dialled from the client's address, which may be why that fails: no backend is to blame
)

func (m marks) has(one marks) bool { return m&one != 0 }

// set sets a mark, or clears it.
func (m *marks) set(one marks, on bool) {
	if *m &^= one; on {
		*m |= one
	}
}

// Unjudged says whether a backend that does not accept is not to blame for that.
func (c *Conn[C]) Unjudged(is bool) { c.marks.set(unjudged, is) }

// Base returns c, for what has it embedded.
func (c *Conn[C]) Base() *Conn[C] { return c }

// Dialling reports whether the backend has not answered yet.
func (c *Conn[C]) Dialling() bool { return c.dial != nil }

// Asked returns what the client has asked for, which is known until the backend has answered.
func (c *Conn[C]) Asked() *balancer.Flow { return &c.dial.ladder.flow }

// Again reports whether an attempt to reach a backend has failed before.
func (c *Conn[C]) Again() bool { return c.dial.ladder.attempt > 0 }

// Spoken reports whether Shard.Spoke was called.
func (c *Conn[C]) Spoken() bool { return c.marks.has(spoke) }

// HasSpoken notes, before Shard.Thaw, that the backend has sent something that is not passed on yet.
func (c *Conn[C]) HasSpoken() { c.marks.set(spoke, true) }

// Spoke notes that the backend has sent something, or ended its stream.
func (sh *Shard[C]) Spoke(c C) {
	conn := c.Base()
	if conn.Spoken() {
		return
	}
	conn.marks.set(spoke, true)
	conn.Choice.Spoke()
	age := sh.age(conn)
	if times := conn.Claim.Times(); times != nil {
		times.Observe(balancer.FirstByteTime, int64(age))
	}
	if n := sh.notes[c]; n != nil {
		n.firstByte = age
	}
}

// Done returns the choice, if there is one.
func (c *Conn[C]) Done() {
	c.Meter.Flush(c.Choice)
	c.Choice.Done(nil)
	c.Choice = balancer.Choice{}
}

// Side is one of a connection's two sockets. What it knows of the socket's readiness is a hint, corrected by the next
// EAGAIN.
type Side[C Owner[C]] struct {
	owner    C
	fd       int32 // -1 while there is none
	Readable bool
	Writable bool
	EOF      bool // the peer has ended its stream and we have read all of it
	Shut     bool // we have ended our stream to the peer
}

// NewSide returns a side of c with a socket, which is c's from now on; -1: with none yet.
func NewSide[C Owner[C]](c C, fd int) Side[C] { return Side[C]{owner: c, fd: int32(fd)} }

// Owner returns the connection.
func (s *Side[C]) Owner() C { return s.owner }

// FD returns the socket, -1 while there is none.
func (s *Side[C]) FD() int { return int(s.fd) }

// Take takes the open socket from s.
func (s *Side[C]) Take() (fd int) {
	sh, _, _ := s.owner.Parts()
	fd, s.fd = s.FD(), -1
	_ = sh.Loop.Detach(fd) // fails if it was not watched
	return fd
}

// HandleEvent moves what can be moved in both directions.
func (s *Side[C]) HandleEvent(ev eventloop.Event) {
	if ev&(eventloop.Readable|eventloop.Hangup) != 0 {
		s.Readable = true
	}
	freed := !s.Writable && ev&(eventloop.Writable|eventloop.Failed) != 0
	if freed {
		s.Writable = true
	}
	c := s.owner
	sh, client, peer := c.Parts()
	isClient := s == client
	conn := c.Base()
	if conn.dial != nil {
		if !isClient {
			sh.dialEvent(c)
		} else if ev&eventloop.Hangup != 0 && (conn.dial.held.Valid() || conn.dial.queued()) {
			conn.dial.abandoned()
		} else if ev&eventloop.Failed != 0 && socket.Failed(s.FD()) != nil { // there is no client to dial for any more
			s.Fail()
		}
		return
	}
	if !isClient {
		peer = client
	}
	if s.Readable {
		c.Relay(isClient)
	}
	// Every edge reports room (epoll(7)); only where there was none before may bytes have waited for it.
	if (freed || peer.Readable) && s.Writable && !conn.Closed {
		c.Relay(!isClient)
	}
	// An error that no read will meet: after the end of the stream, or while the peer takes nothing.
	if ev&eventloop.Failed != 0 && !conn.Closed && (s.EOF || !peer.Writable) && socket.Failed(s.FD()) != nil {
		s.Fail()
	}
}

// PassEOF ends dst's stream after the last byte of s's. True: both streams have ended, and no byte waits for s.
func (s *Side[C]) PassEOF(dst *Side[C], waiting bool) (over bool) {
	if sh, client, _ := s.owner.Parts(); s != client {
		sh.Spoke(s.owner)
	}
	if dst.EOF && !waiting {
		return true
	}
	if !dst.Shut {
		dst.Shut = true
		// ENOTCONN: dst was reset meanwhile, which its own event reports.
		_ = socket.EndStream(dst.FD())
	}
	return false
}

// Fail ends the connection after an error on s: the other side is reset.
func (s *Side[C]) Fail() {
	sh, client, _ := s.owner.Parts()
	if s == client {
		sh.ClientResets.Add(1)
		sh.because(s.owner, lb.ClientData)
	} else {
		sh.BackendResets.Add(1)
		sh.because(s.owner, lb.ServerData)
		if conn := s.owner.Base(); !conn.Spoken() && !s.Shut { // to the end of a stream a reset may be the answer
			conn.Meter.Flush(conn.Choice)
			conn.Choice.WasReset(ErrReset, conn.Claim.Client(), eventloop.Now())
			conn.Choice = balancer.Choice{}
		}
	}
	sh.Abort(s.owner)
}

// Abort resets both sides and ends the connection.
func (sh *Shard[C]) Abort(c C) {
	_, client, backend := c.Parts()
	for _, s := range [...]*Side[C]{client, backend} {
		if s.fd >= 0 {
			c.Reset(s.FD())
		}
	}
	sh.End(c)
}

// End closes what a connection has, and takes it out of the list.
func (sh *Shard[C]) End(c C) {
	conn := c.Base()
	end := sh.ending
	if sh.ending = lb.Normal; end != lb.Normal {
		sh.countEnd(conn, end)
	}
	if conn.dial == nil {
		if times := conn.Claim.Times(); times != nil {
			times.Observe(balancer.Duration, int64(sh.age(conn)))
		}
	}
	if sh.Log != nil {
		sh.log(c, end)
	}
	c.Release()
	_, client, backend := c.Parts()
	sh.closeSocket(client)
	sh.closeSocket(backend)
	conn.Closed = true
	sh.endDial(conn)
	conn.Done()
	sh.remove(c)
	sh.claims.End(conn.Claim)
	if len(sh.walk.ages) > 0 {
		delete(sh.walk.ages, c)
	}
	conn.Claim = Claim{}
	sh.Descriptors.Give(2)
	sh.Count.Active.Add(-1)
	if len(sh.ended) < maxKept {
		sh.ended = append(sh.ended, c)
	}
	sh.Drain.Check(sh.Empty())
}

// countEnd counts for its Service how a connection has ended.
func (sh *Shard[C]) countEnd(c *Conn[C], end lb.End) {
	if !c.Claim.Ended(end) && c.dial != nil {
		sh.LB.Ended(c.dial.ladder.flow.Frontend, end)
	}
}

// age returns how old a connection is by the time of the turn.
func (sh *Shard[C]) age(c *Conn[C]) time.Duration { return c.born.Age(sh.Loop.Time()) }

func (sh *Shard[C]) closeSocket(s *Side[C]) {
	if s.fd < 0 {
		return
	}
	if s.owner.Base().Shared {
		_ = sh.Loop.Detach(s.FD()) // a copy of it may keep the socket open
	}
	_ = sh.Loop.Close(s.FD())
	s.fd = -1
}
