package tcp

import (
	"golang.org/x/sys/unix"
)

// A direction in which a read has filled the buffer is bulk: its bytes then go through a pipe by splice(2), which
// halves the processor time per byte but costs one more system call per wake-up, a loss for messages.
const (
	bulkLeast = 32 << 10 // bytes that a wake-up must bring for a direction to remain bulk
	bulkIdle  = 4        // wake-ups in a row that may bring less
)

// judge takes back an empty pipe after a relay call that has moved what there was, so that no idle connection has one,
// and ends bulk if the last few that were asked to read have brought little.
func (c *conn) judge(src, dst *side, moved int, asked bool) {
	if dst.pipe == nil || dst.pipe.Len() > 0 {
		return
	}
	c.returnPipe(dst)
	if !asked {
		return
	}
	if moved >= bulkLeast {
		src.idle = 0
	} else if src.idle++; src.idle >= bulkIdle {
		dst.bulk = false
	}
}

// returnPipe gives the pipe of a direction back, if it has one.
func (c *conn) returnPipe(dst *side) {
	if dst.pipe != nil {
		c.sh.Loop.Pipes.Return(dst.pipe)
		dst.pipe = nil
	}
}

// fill moves bytes from src into the empty pipe of dst, and reports whether relaying goes on. How much it got says
// nothing about what is left: a pipe is full when its slots are, so only EAGAIN ends the reading. A splice stops before
// urgent data as at an empty socket and at the end of the stream (tcp_splice_read): a read has to distinguish them.
func (c *conn) fill(src, dst *side) bool {
	if dst.pipe == nil {
		pipe, err := c.sh.Loop.Pipes.Borrow()
		if err != nil {
			dst.bulk = false // copying goes on
			return true
		}
		dst.pipe = pipe
	}
	n, err := dst.pipe.Fill(src.FD())
	if n == 0 && err == nil || err == unix.EAGAIN && src.drain {
		c.returnPipe(dst)
		dst.bulk = false
		return true
	}
	if err != nil {
		return c.readEnded(src, err)
	}
	return true
}

// drain moves bytes from the pipe to dst, and reports whether it is empty.
func (c *conn) drain(dst *side) (moved int, more bool) {
	if dst.packs {
		dst.unpack()
	}
	n, err := dst.pipe.Drain(dst.FD())
	switch err {
	case nil, unix.EINTR:
		c.countBytes(dst, n)
		return n, true // also with a rest: the next call finds out whether dst takes it
	case unix.EAGAIN:
		dst.Writable = false
		return 0, false
	}
	c.sendFailed(dst)
	return 0, false
}
