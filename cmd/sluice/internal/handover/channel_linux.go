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
}

// newChannel owns fd, a non-blocking socket of type SOCK_SEQPACKET.
func newChannel(fd int) *Channel {
	// Room for some messages; the default is enough if we may not (socket(7)).
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 1<<20)
	return &Channel{fd: fd, buf: make([]byte, maxMessage+4096)}
}

// Close ends the conversation.
func (c *Channel) Close() {
	if c.fd >= 0 {
		_ = unix.Close(c.fd)
		c.fd = -1
	}
}

// try sends a message if there is room for it: errFull if not.
func (c *Channel) try(k kind, payload []byte, fds ...int) error {
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	b := append(make([]byte, 0, 1+len(payload)), byte(k))
	b = append(b, payload...)
	for {
		err := unix.Sendmsg(c.fd, b, rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
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

// send sends a message, waiting for room.
func (c *Channel) send(ctx context.Context, k kind, payload []byte, fds ...int) error {
	for {
		if err := c.try(k, payload, fds...); err != errFull {
			return err
		}
		if err := c.wait(ctx, unix.POLLOUT); err != nil {
			return err
		}
	}
}

// sendJSON is send for a small value.
func (c *Channel) sendJSON(ctx context.Context, k kind, v any, fds ...int) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode message %d: %w", k, err)
	}
	return c.send(ctx, k, b, fds...)
}

// sendPart sends something long in pieces.
func (c *Channel) sendPart(ctx context.Context, p part, b []byte) error {
	for {
		piece := b[:min(len(b), maxMessage-2)]
		b = b[len(piece):]
		last := byte(0)
		if len(b) == 0 {
			last = 1
		}
		if err := c.send(ctx, partMsg, append([]byte{byte(p), last}, piece...)); err != nil || last == 1 {
			return err
		}
	}
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

// receive returns the next message. ErrEnded: there is none any more.
func (c *Channel) receive(ctx context.Context) (message, error) {
	for {
		m, err := c.receiveOne()
		switch {
		case err == unix.EAGAIN:
			if err := c.wait(ctx, unix.POLLIN); err != nil {
				return message{}, err
			}
			continue
		case err != nil:
			return message{}, err
		case m.kind == failedMsg:
			closeAll(m.fds)
			return message{}, &Failure{Reason: string(m.payload)}
		}
		return m, nil
	}
}

func (c *Channel) receiveOne() (message, error) {
	oob := make([]byte, unix.CmsgSpace(4*maxFDs))
	n, oobn, flags, _, err := unix.Recvmsg(c.fd, c.buf, oob, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	switch {
	case err == unix.EINTR:
		return message{}, unix.EAGAIN
	case err == unix.ECONNRESET:
		return message{}, ErrEnded
	case err != nil:
		return message{}, err
	}
	fds := rights(oob[:oobn])
	switch {
	case flags&unix.MSG_CTRUNC != 0:
		closeAll(fds)
		return message{}, fmt.Errorf("receive file descriptors: %w: raise the limit (ulimit -n)", unix.EMFILE)
	case flags&unix.MSG_TRUNC != 0:
		closeAll(fds)
		return message{}, fmt.Errorf("a message is longer than %d bytes", maxMessage)
	case n == 0:
		closeAll(fds)
		return message{}, ErrEnded
	}
	return message{kind: kind(c.buf[0]), payload: c.buf[1:n], fds: fds}, nil
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
func (c *Channel) expectJSON(ctx context.Context, k kind, v any) ([]int, error) {
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

// token is the reading end of a pipe with one byte in it: the process that reads it has everything.
type token struct{ fd int }

// newToken makes a token. The caller closes it.
func newToken() (token, error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
		return token{-1}, fmt.Errorf("make token: %w", err)
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
