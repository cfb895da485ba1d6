package tcp

import (
	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/session"
	"github.com/sluice-lb/sluice/internal/socket"
)

// relayLimit is how many bytes one direction may move before the other descriptors of its loop are served.
const relayLimit = 1 << 20

// conn is one proxied connection. It belongs to its shard's loop.
type conn struct {
	session.Conn[*conn]
	sh              *shard
	client, backend side
	offer           uint32 // number under which another process has copies of its sockets; 0: none
	settled         bool   // it is no short connection: see settle
	transparent     bool   // the backend sees the client's own address
	watched         bool   // the loop reports events of the client: not before its Service has its turn to dial
}

// side is one of a conn's two sockets.
type side struct {
	session.Side[*conn]
	out    *eventloop.Buffer // bytes that wait to be written to this socket, or nil
	pipe   *eventloop.Pipe   // the same while its peer sends bulk (see bulk_linux.go)
	bulk   bool              // its peer does
	idle   uint8             // consecutive wake-ups that brought too little for bulk
	drain  bool              // a short read does not mean that there is no more: read until EAGAIN
	packs  bool              // the kernel may still hold back small segments (Nagle), which does no harm
	sent   bool              // before something was sent
	young  uint8             // events until it is none of many that come and go
	header uint16            // how many of the bytes that wait are of a PROXY header
}

// youth is how many events of a socket are deferred: a short connection has no more.
const youth = 8

// Parts returns the shard and the sockets (session.Owner).
func (c *conn) Parts() (*session.Shard[*conn], *session.Side[*conn], *session.Side[*conn]) {
	return &c.sh.Shard, &c.client.Side, &c.backend.Side
}

// sides returns both, for what is done to each.
func (c *conn) sides() [2]*side { return [...]*side{&c.client, &c.backend} }

// HandleEvent moves what can be moved in both directions.
func (s *side) HandleEvent(ev eventloop.Event) {
	if s.young > 0 {
		if s.young--; s.young == 0 {
			s.Owner().sh.Loop.Promote(s.FD())
		}
	}
	// After the end of the stream no event comes for what is still queued, and a read stops short at urgent data
	// (tcp(7)).
	if ev&(eventloop.Hangup|unix.EPOLLPRI) != 0 {
		s.drain = true
	}
	s.Side.HandleEvent(ev)
}

// Relay moves what can be moved, to the backend or to the client (session.Owner).
func (c *conn) Relay(toBackend bool) {
	if toBackend {
		c.relay(&c.client, &c.backend)
	} else {
		c.relay(&c.backend, &c.client)
	}
}

// relay moves bytes from src to dst until src has no more, dst takes no more, or relayLimit is reached.
func (c *conn) relay(src, dst *side) {
	moved, asked := 0, src.Readable
	for moved < relayLimit {
		n, more := c.step(src, dst)
		moved += n
		if !more {
			c.judge(src, dst, moved, asked)
			return
		}
	}
	if err := c.sh.Loop.Rearm(src.FD()); err != nil {
		src.Fail() // no event would report the rest
	}
}

// step moves one portion, and reports whether there may be another.
func (c *conn) step(src, dst *side) (moved int, more bool) {
	switch {
	case dst.waiting():
		return c.flush(dst)
	case src.EOF:
		if src.PassEOF(&dst.Side, src.waiting()) {
			c.sh.End(c)
		}
		return 0, false
	case !src.Readable || !dst.Writable:
		return 0, false
	case dst.bulk:
		return 0, c.fill(src, dst)
	}
	return c.copy(src, dst)
}

// copy reads once and writes what it got.
func (c *conn) copy(src, dst *side) (moved int, more bool) {
	buf := c.sh.Loop.Scratch
	n, err := socket.Recv(src.FD(), buf)
	if err != nil || n == 0 {
		return 0, c.readEnded(src, err)
	}
	if src == &c.backend && !c.Spoken() {
		c.sh.Spoke(c)
	}
	reset := false
	switch {
	case n == len(buf):
		src.idle, dst.bulk = 0, true
	case src.drain:
		// The end of the stream may be next, and can go out with the last bytes.
		m, err := socket.Recv(src.FD(), buf[n:])
		n += m
		src.EOF = m == 0 && err == nil
		src.Readable = err != unix.EAGAIN
		reset = err != nil && err != unix.EAGAIN && err != unix.EINTR
	default:
		src.Readable = false // epoll(7): a short read has emptied the socket
	}
	sent, ok := c.send(dst, buf[:n], src.EOF)
	if ok && reset {
		src.Fail()
		return sent, false
	}
	if ok && sent < n {
		dst.out = c.sh.Loop.Buffers.Copy(buf[sent:n])
	}
	return sent, ok
}

// readEnded settles a read from src that gave no bytes, and reports whether relaying goes on.
func (c *conn) readEnded(src *side, err error) bool {
	switch err {
	case nil:
		src.EOF = true
		return true
	case unix.EINTR:
		return true
	case unix.EAGAIN:
		src.Readable = false
		return false
	}
	src.Fail()
	return false
}

// countBytes counts what one call has written to dst, but for a PROXY header: at once, since the next step may end the
// choice.
func (c *conn) countBytes(dst *side, n int) {
	if dst == &c.backend {
		if dst.header > 0 {
			header := min(n, int(dst.header))
			dst.header -= uint16(header)
			n -= header
		}
		c.sh.count.BytesIn.Add(uint64(n))
		c.sh.Moved(c.Base(), n, 0)
	} else {
		c.sh.count.BytesOut.Add(uint64(n))
		c.sh.Moved(c.Base(), 0, n)
	}
}

// waiting reports whether bytes wait to be written to s.
func (s *side) waiting() bool { return s.out != nil || s.pipe != nil && s.pipe.Len() > 0 }

// flush writes what waits for dst, and reports whether all of it is written.
func (c *conn) flush(dst *side) (moved int, more bool) {
	if !dst.Writable {
		return 0, false
	}
	if dst.out == nil {
		return c.drain(dst)
	}
	n, ok := c.send(dst, dst.out.Bytes(), false)
	if !ok {
		return n, false
	}
	if dst.out.Take(n); dst.out.Len() > 0 {
		return n, false
	}
	c.sh.Loop.Buffers.Return(dst.out)
	dst.out = nil
	return n, true
}

// send writes to dst and returns how much it took; less than all means that it takes no more now. last: the end of the
// stream follows. False: the connection is over.
func (c *conn) send(dst *side, p []byte, last bool) (int, bool) {
	write := socket.Send
	if last {
		write = socket.SendPart
	}
	if dst.packs {
		dst.unpack()
	}
	for {
		n, err := write(dst.FD(), p)
		switch err {
		case nil:
			c.countBytes(dst, n)
			if n < len(p) {
				dst.Writable = false // an event reports when there is room again
			}
			return n, true
		case unix.EAGAIN:
			dst.Writable = false
			return 0, true
		case unix.EINTR:
			continue
		}
		c.sendFailed(dst)
		return 0, false
	}
}

// unpack turns off Nagle's algorithm before the second time that something is sent: what is passed on has been packed
// by its sender. The first time nothing is under way that it could wait for, and many connections have no second.
func (s *side) unpack() {
	if s.sent {
		s.packs = false
		// It can fail only on what is no TCP socket.
		_ = unix.SetsockoptInt(s.FD(), unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	}
	s.sent = true
}

// sendFailed ends the connection after dst's peer has reset it. What the peer had sent before is passed on as far as
// that goes at once, since an answer followed by a reset is how some servers refuse a request.
func (c *conn) sendFailed(dst *side) {
	other := &c.client
	if dst == other {
		other = &c.backend
	}
	for !dst.EOF && !other.waiting() && other.Writable {
		buf := c.sh.Loop.Scratch
		n, err := socket.Recv(dst.FD(), buf)
		if err != nil || n == 0 {
			break
		}
		if dst == &c.backend {
			c.sh.Spoke(c)
		}
		sent, err := socket.Send(other.FD(), buf[:n])
		if c.countBytes(other, sent); err != nil || sent < n {
			break
		}
	}
	dst.Fail()
}

// Reset makes sure that the peer of a socket is reset (session.Owner).
func (c *conn) Reset(fd int) {
	if c.Shared {
		socket.Reset(fd)
	} else {
		socket.ResetOnClose(fd)
	}
}

// Release gives back what the connection holds besides its sockets (session.Owner).
func (c *conn) Release() {
	for _, s := range c.sides() {
		if c.Shared && s.FD() >= 0 {
			// For every process that has a copy of the descriptor. ENOTCONN: it is over already.
			_ = unix.Shutdown(s.FD(), unix.SHUT_RDWR)
		}
		if s.out != nil {
			c.sh.Loop.Buffers.Return(s.out)
			s.out = nil
		}
		c.returnPipe(s)
	}
	c.appear(false)
	c.sh.leave(c)
}

// Watch has the client's events reported (session.Owner).
func (c *conn) Watch() error {
	if c.watched {
		return nil
	}
	err := c.sh.Loop.AddDeferred(c.client.FD(), &c.client)
	c.watched = err == nil
	return err
}

// Connect starts to connect to the chosen backend (session.Owner).
func (c *conn) Connect() error {
	if err := c.Watch(); err != nil {
		return err
	}
	if err := c.connect(); err != nil {
		return err
	}
	// Registered only now: an unconnected socket reports a hang-up (tcp_poll).
	return c.sh.Loop.AddDeferred(c.backend.FD(), &c.backend)
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
		if c.transparent {
			c.Choice.Appear()
		}
		if c.Choice.ProxyVersion() != 0 {
			c.announce()
		}
		return true, nil
	default:
		return false, err
	}
}

// announce makes a PROXY header the first bytes that wait for the backend, which has just accepted.
func (c *conn) announce() {
	b := announcement(c.sh.Loop.Scratch[:0], c.Asked(), c.Choice, &c.sh.ids)
	c.backend.out, c.backend.header = c.sh.Loop.Buffers.Copy(b), uint16(len(b))
}
