package handover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// poll is how long a wait goes before it looks whether its context has ended.
const poll = 20 * time.Millisecond

// ErrEnded means that the other side has closed the channel.
var ErrEnded = errors.New("the other process has ended the conversation")

// errFull means that the channel takes nothing right now.
var errFull = errors.New("channel is full")

// Channel is one end of the conversation. It is used by one goroutine at a time.
type Channel struct {
	fd  int
	buf []byte
	cut []int // file descriptors of a message of which not all pieces have come
}

// newChannel owns fd, a non-blocking socket of type SOCK_SEQPACKET.
func newChannel(fd int) *Channel {
	// Room for some messages; the default is enough if we may not (socket(7)).
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 1<<20)
	return &Channel{fd: fd, buf: make([]byte, maxPiece+4096)}
}

// Close ends the conversation.
func (c *Channel) Close() {
	if c.fd >= 0 {
		_ = unix.Close(c.fd)
		closeAll(c.cut)
		c.fd, c.cut = -1, nil
	}
}

// try sends a piece of a message if there is room for it: errFull if not.
func (c *Channel) try(k kind, payload []byte, fds ...int) error {
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	for {
		_, err := unix.SendmsgBuffers(c.fd, [][]byte{{byte(k)}, payload}, rights, nil,
			unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		switch err {
		case nil:
			return nil
		case unix.EINTR:
			continue
		case unix.EAGAIN, unix.ENOBUFS, unix.ETOOMANYREFS: // the last: many file descriptors are in flight (unix(7))
			return errFull
		case unix.EPIPE, unix.ECONNRESET, unix.ENOTCONN:
			return ErrEnded
		}
		return fmt.Errorf("send message %d: %w", k, err)
	}
}

// send sends a message, in as many pieces as it takes, waiting for room.
func (c *Channel) send(ctx context.Context, k kind, payload []byte, fds ...int) error {
	for {
		n, m, piece := min(len(payload), maxPiece), min(len(fds), maxFDs), k
		if n < len(payload) || m < len(fds) {
			piece |= goesOn
		}
		err := c.try(piece, payload[:n], fds[:m]...)
		switch {
		case err == errFull:
			if err := c.wait(ctx, unix.POLLOUT); err != nil {
				return err
			}
			continue
		case err != nil, piece == k:
			return err
		}
		payload, fds = payload[n:], fds[m:]
	}
}

// sendJSON is send for a JSON message.
func (c *Channel) sendJSON(ctx context.Context, k kind, v any, fds ...int) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode message %d: %w", k, err)
	}
	return c.send(ctx, k, b, fds...)
}

// wait waits until the channel is ready for events. No event reports some of the reasons
// why the receiver's queue is full, so that no wait is longer than poll.
func (c *Channel) wait(ctx context.Context, events int16) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	_, err := unix.Poll([]unix.PollFd{{Fd: int32(c.fd), Events: events}}, int(poll.Milliseconds()))
	if err != nil && err != unix.EINTR {
		return fmt.Errorf("wait for the other process: %w", err)
	}
	return nil
}

// message is what was received. Its payload lasts until the next receive; its
// file descriptors are the receiver's.
type message struct {
	kind    kind
	payload []byte
	fds     []int
}

// receive returns the next message, put together of its pieces. ErrEnded: there is none
// any more.
func (c *Channel) receive(ctx context.Context) (message, error) {
	var m message
	for {
		p, err := c.receivePiece(ctx)
		if err != nil {
			return message{}, err
		}
		last := p.kind&goesOn == 0
		p.kind &^= goesOn
		switch {
		case p.kind == failedMsg:
			closeAll(p.fds)
			return message{}, &Failure{Reason: string(p.payload)}
		case m.kind == 0 && last:
			return p, nil
		case m.kind == 0:
			m.kind = p.kind
		case p.kind != m.kind, len(m.payload)+len(p.payload) > maxMessage:
			closeAll(p.fds)
			return message{}, fmt.Errorf("message %d does not end, or is longer than %d bytes", m.kind, maxMessage)
		}
		m.payload, c.cut = append(m.payload, p.payload...), append(c.cut, p.fds...)
		if last {
			m.fds, c.cut = c.cut, nil
			return m, nil
		}
	}
}

func (c *Channel) receivePiece(ctx context.Context) (message, error) {
	oob := make([]byte, unix.CmsgSpace(4*maxFDs))
	for {
		n, oobn, flags, _, err := unix.Recvmsg(c.fd, c.buf, oob, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
		switch err {
		case nil:
		case unix.EAGAIN, unix.EINTR:
			if err := c.wait(ctx, unix.POLLIN); err != nil {
				return message{}, err
			}
			continue
		case unix.ECONNRESET:
			return message{}, ErrEnded
		default:
			return message{}, fmt.Errorf("receive a message: %w", err)
		}
		fds := rights(oob[:oobn])
		switch {
		case flags&unix.MSG_CTRUNC != 0:
			err = fmt.Errorf("receive file descriptors: %w", withRemedy(unix.EMFILE))
		case flags&unix.MSG_TRUNC != 0:
			err = fmt.Errorf("a piece of a message is longer than %d bytes", maxPiece)
		case n == 0:
			err = ErrEnded
		default:
			return message{kind: kind(c.buf[0]), payload: c.buf[1:n], fds: fds}, nil
		}
		closeAll(fds)
		return message{}, err
	}
}

// expect returns the next message, which must be of a kind.
func (c *Channel) expect(ctx context.Context, k kind) (message, error) {
	m, err := c.receive(ctx)
	if err == nil && m.kind != k {
		closeAll(m.fds)
		return message{}, fmt.Errorf("message %d came where %d was due", m.kind, k)
	}
	return m, err
}

// expectJSON is expect for a JSON message.
func (c *Channel) expectJSON(ctx context.Context, k kind, v any) (fds []int, err error) {
	m, err := c.expect(ctx, k)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(m.payload, v); err != nil {
		closeAll(m.fds)
		return nil, fmt.Errorf("decode message %d: %w", k, err)
	}
	return m.fds, nil
}

// rights returns the file descriptors of control messages.
func rights(oob []byte) (fds []int) {
	all, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	for i := range all {
		if got, err := unix.ParseUnixRights(&all[i]); err == nil {
			fds = append(fds, got...)
		}
	}
	return fds
}

func closeAll(fds []int) {
	for _, fd := range fds {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// withRemedy returns an error of a call that makes file descriptors, with what is to be done if there are too many.
func withRemedy(err error) error {
	if errors.Is(err, unix.EMFILE) {
		return fmt.Errorf("%w: raise the limit (ulimit -n)", err)
	}
	return err
}

// token is the reading end of a pipe with one byte in it: the process that reads it has everything.
type token struct{ fd int }

// newToken makes a token. The caller closes it.
func newToken() (token, error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
		return token{-1}, fmt.Errorf("make token: %w", withRemedy(err))
	}
	defer func() { _ = unix.Close(p[1]) }()
	if _, err := unix.Write(p[1], []byte{1}); err != nil {
		_ = unix.Close(p[0])
		return token{-1}, fmt.Errorf("make token: %w", err)
	}
	return token{p[0]}, nil
}

// take reports whether we have the token. It is asked once.
func (t token) take() bool {
	var b [1]byte
	for {
		n, err := unix.Read(t.fd, b[:])
		if err != unix.EINTR {
			return n == 1
		}
	}
}

func (t token) close() {
	if t.fd >= 0 {
		_ = unix.Close(t.fd)
	}
}

// monotonic returns CLOCK_MONOTONIC, which all processes of a host share.
func monotonic() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // fails for an unknown clock only
	return ts.Nano()
}
