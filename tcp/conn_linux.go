package tcp

import (
	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/session"
	"github.com/sluice-lb/sluice/internal/socket"
)

// relayLimit is how many bytes one direction may move before the other descriptors
// of its loop are served.
const relayLimit = 1 << 20

// conn is one proxied connection. It belongs to its shard's loop.
type conn struct {
	session.Conn
	sh              *shard
	client, backend side
	offer           uint32 // number under which another process has copies of its sockets; 0: none
	settled         bool   // it is no short connection: see settle
}

// side is one of a conn's two sockets. What it knows of the socket's readiness is
// a hint, corrected by the next EAGAIN.
type side struct {
	c        *conn
	out      *eventloop.Buffer // bytes that wait to be written to this socket, or nil
	pipe     *eventloop.Pipe   // the same while its peer sends bulk (see bulk_linux.go)
	fd       int32             // -1 while there is none
	full     uint8             // consecutive reads from this socket that filled the buffer
	idle     uint8             // consecutive wake-ups that brought too little for bulk
	readable bool
	writable bool
	drain    bool // a short read does not mean that there is no more: read until EAGAIN
	eof      bool // the peer has ended its stream and we have read all of it
	shut     bool // we have ended our stream to the peer
	packs    bool // the kernel may still hold back small segments (Nagle), which does no harm
	sent     bool // before something was sent
}

// HandleEvent moves what can be moved in both directions.
func (s *side) HandleEvent(ev eventloop.Event) {
	c := s.c
	if ev&(eventloop.Readable|eventloop.Hangup) != 0 {
		s.readable = true
	}
	if ev&(eventloop.Writable|eventloop.Failed) != 0 {
		s.writable = true
	}
	// After the end of the stream no further event comes for what is still queued,
	// and a read stops short at urgent data (tcp(7)).
	if ev&(eventloop.Hangup|unix.EPOLLPRI) != 0 {
		s.drain = true
	}
	if c.Dialling() {
		c.eventWhileDialling(s, ev)
		return
	}
	peer := c.peer(s)
	if s.readable {
		c.relay(s, peer)
	}
	if !c.Closed && s.writable && (s.waiting() || peer.readable || peer.eof && !s.shut) {
		c.relay(peer, s)
	}
	// An error that no read will meet: after the end of the stream, or while the peer takes nothing.
	if ev&eventloop.Failed != 0 && !c.Closed && (s.eof || !peer.writable) && socket.Failed(int(s.fd)) {
		c.fail(s)
	}
}

func (c *conn) peer(s *side) *side {
	if s == &c.client {
		return &c.backend
	}
	return &c.client
}

func (c *conn) eventWhileDialling(s *side, ev eventloop.Event) {
	switch {
	case s == &c.backend:
		c.dialEvent()
	case ev&eventloop.Failed != 0 && socket.Failed(int(s.fd)): // there is no client to dial for any more
		c.fail(s)
	}
}

// relay moves bytes from src to dst until src has no more, dst takes no more, or
// relayLimit is reached.
func (c *conn) relay(src, dst *side) {
	moved, asked := 0, src.readable
	for moved < relayLimit {
		n, more := c.step(src, dst)
		moved += n
		if !more {
			if asked {
				c.judge(src, dst, moved)
			}
			return
		}
	}
	if err := c.sh.Loop.Rearm(int(src.fd)); err != nil {
		c.fail(src) // no event would report the rest
	}
}

// step moves one portion, and reports whether there may be another.
func (c *conn) step(src, dst *side) (moved int, more bool) {
	switch {
	case dst.waiting():
		return c.flush(dst)
	case src.eof:
		c.passEOF(src, dst)
		return 0, false
	case !src.readable || !dst.writable:
		return 0, false
	case dst.pipe != nil:
		return 0, c.fill(src, dst)
	}
	return c.copy(src, dst)
}

// copy reads once and writes what it got.
func (c *conn) copy(src, dst *side) (moved int, more bool) {
	buf := c.sh.Loop.Scratch()
	n, err := socket.Recv(int(src.fd), buf)
	if err != nil || n == 0 {
		return 0, c.readEnded(src, err)
	}
	reset := false
	switch {
	case n == len(buf):
		c.startBulk(src, dst)
	case src.drain:
		src.full = 0
		// The end of the stream may be next, and can go out with the last bytes.
		m, err := socket.Recv(int(src.fd), buf[n:])
		n += m
		src.eof = m == 0 && err == nil
		src.readable = err != unix.EAGAIN
		reset = err != nil && err != unix.EAGAIN && err != unix.EINTR
	default:
		src.full = 0
		src.readable = false // epoll(7): a short read has emptied the socket
	}
	sent, ok := c.send(dst, buf[:n], src.eof)
	if ok && reset {
		c.fail(src)
		return sent, false
	}
	if ok && sent < n {
		dst.out = c.sh.Loop.Buffers().Copy(buf[sent:n])
	}
	return sent, ok
}

// readEnded settles a read from src that gave no bytes, and reports whether
// relaying goes on.
func (c *conn) readEnded(src *side, err error) bool {
	switch err {
	case nil:
		src.eof = true
		return true
	case unix.EINTR:
		return true
	case unix.EAGAIN:
		src.readable = false
		return false
	}
	c.fail(src)
	return false
}

// countBytes counts what one call has written to dst: at once, since the next step may
// end the connection, and with it the choice that the bytes are counted for.
func (c *conn) countBytes(dst *side, n int) {
	if dst == &c.backend {
		c.sh.count.BytesIn.Add(uint64(n))
		c.Meter.Add(c.Choice, n, 0)
	} else {
		c.sh.count.BytesOut.Add(uint64(n))
		c.Meter.Add(c.Choice, 0, n)
	}
}

// waiting reports whether bytes wait to be written to s.
func (s *side) waiting() bool { return s.out != nil || s.pipe != nil && s.pipe.Len() > 0 }

// flush writes what waits for dst, and reports whether all of it is written.
func (c *conn) flush(dst *side) (moved int, more bool) {
	if !dst.writable {
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
	c.sh.Loop.Buffers().Return(dst.out)
	dst.out = nil
	return n, true
}

// send writes to dst and returns how much it took; less than all means that it
// takes no more now. last says that the end of the stream follows. False: the connection is over.
func (c *conn) send(dst *side, p []byte, last bool) (int, bool) {
	write := socket.Send
	if last {
		write = socket.SendPart
	}
	if dst.packs {
		dst.unpack()
	}
	for {
		n, err := write(int(dst.fd), p)
		switch err {
		case nil:
			c.countBytes(dst, n)
			if n < len(p) {
				dst.writable = false // an event reports when there is room again
			}
			return n, true
		case unix.EAGAIN:
			dst.writable = false
			return 0, true
		case unix.EINTR:
			continue
		}
		c.sendFailed(dst)
		return 0, false
	}
}

// unpack turns off Nagle's algorithm before the second time that something is sent:
// what is passed on has been packed by its sender. The first time nothing is under way for
// it to wait for, and many connections have no second.
func (s *side) unpack() {
	if s.sent {
		s.packs = false
		// It can fail only on what is no TCP socket.
		_ = unix.SetsockoptInt(int(s.fd), unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	}
	s.sent = true
}

// sendFailed ends the connection after dst's peer has reset it. What the peer had
// sent before may still be queued: it is passed on as far as that goes at once,
// since an answer followed by a reset is how some servers refuse a request.
func (c *conn) sendFailed(dst *side) {
	other := c.peer(dst)
	for !dst.eof && !other.waiting() && other.writable {
		buf := c.sh.Loop.Scratch()
		n, err := socket.Recv(int(dst.fd), buf)
		if err != nil || n == 0 {
			break
		}
		sent, err := socket.Send(int(other.fd), buf[:n])
		if c.countBytes(other, sent); err != nil || sent < n {
			break
		}
	}
	c.fail(dst)
}

// passEOF ends dst's stream after the last byte of src's.
func (c *conn) passEOF(src, dst *side) {
	if dst.eof && !src.waiting() {
		c.close()
		return
	}
	if !dst.shut {
		dst.shut = true
		// ENOTCONN: dst was reset meanwhile, which its own event reports.
		_ = socket.EndStream(int(dst.fd))
	}
}

// fail ends the connection after an error on s: its peer is reset.
func (c *conn) fail(s *side) {
	if s == &c.client {
		c.sh.count.ClientResets.Add(1)
	} else {
		c.sh.count.BackendResets.Add(1)
	}
	c.Abort()
}

// Abort resets both sides (session.Owner).
func (c *conn) Abort() {
	for _, s := range [...]*side{&c.client, &c.backend} {
		switch {
		case s.fd < 0:
		case c.Shared:
			socket.Reset(int(s.fd))
		default:
			socket.ResetOnClose(int(s.fd))
		}
	}
	c.close()
}

// close ends the connection and gives back all it holds.
func (c *conn) close() {
	for _, s := range [...]*side{&c.client, &c.backend} {
		if c.Shared && s.fd >= 0 {
			// For every process that has a copy of the descriptor. ENOTCONN: it is over already.
			_ = unix.Shutdown(int(s.fd), unix.SHUT_RDWR)
		}
		c.closeSocket(s)
		if s.out != nil {
			c.sh.Loop.Buffers().Return(s.out)
			s.out = nil
		}
		c.endBulk(s)
	}
	c.sh.leave(c)
	c.sh.End(&c.Conn)
}

func (c *conn) closeSocket(s *side) {
	if s.fd >= 0 {
		c.sh.CloseSocket(&c.Conn, int(s.fd))
		s.fd = -1
	}
}
