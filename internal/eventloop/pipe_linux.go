package eventloop

import (
	"fmt"

	"golang.org/x/sys/unix"
)

const (
	// pipeSize is what a pipe is asked to hold, in bytes. A page of payload takes a slot of 4 KiB whether it is full or
	// not, so a pipe of the default 64 KiB would hold as little as 16 segments of a LAN's MTU.
	pipeSize = 512 << 10

	// keepPipes bounds the free pipes of one loop.
	keepPipes = 32
)

// Pipe carries bytes between two sockets without a copy through user space (splice(2)).
type Pipe struct {
	r, w int
	n    int // bytes in the pipe
}

// Len returns how many bytes are in the pipe.
func (p *Pipe) Len() int { return p.n }

// Fill moves bytes from a socket into the pipe, which must be empty, so that EAGAIN means that the socket has none.
// 0 means the end of the stream.
func (p *Pipe) Fill(from int) (int, error) {
	n, err := splice(from, p.w, pipeSize)
	p.n = n
	return n, err
}

// Drain moves bytes from the pipe, which must not be empty, to a socket.
func (p *Pipe) Drain(to int) (int, error) {
	n, err := splice(p.r, to, p.n)
	p.n -= n
	return n, err
}

// Empty takes all bytes out of the pipe.
func (p *Pipe) Empty() ([]byte, error) {
	out := make([]byte, 0, p.n)
	for p.n > 0 {
		n, err := unix.Read(p.r, out[len(out):cap(out)])
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return out, err
		case n == 0:
			return out, unix.EPIPE
		}
		out = out[:len(out)+n]
		p.n -= n
	}
	return out, nil
}

// splice never waits, and so is called without telling the Go scheduler.
func splice(from, to, size int) (int, error) {
	n, _, errno := unix.RawSyscall6(unix.SYS_SPLICE, uintptr(from), 0, uintptr(to), 0,
		uintptr(size), unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

func (p *Pipe) close() {
	_ = unix.Close(p.r)
	_ = unix.Close(p.w)
}

// Pipes is the pool of one loop.
type Pipes struct {
	// Budget is asked for the two descriptors of each pipe, lent or free. nil: no bound.
	Budget *Budget

	free []*Pipe
	lent int
}

// Borrow returns an empty pipe until Return. The error means that there are no descriptors for one; the caller then
// copies instead.
func (p *Pipes) Borrow() (*Pipe, error) {
	if pipe := pop(&p.free); pipe != nil {
		p.lent++
		return pipe, nil
	}
	if !p.Budget.Take(2) {
		return nil, unix.EMFILE
	}
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
		p.Budget.Give(2)
		return nil, fmt.Errorf("create pipe: %w", err)
	}
	// A refusal (EPERM beyond pipe-user-pages-soft, pipe(7)) leaves a smaller pipe.
	_, _ = unix.FcntlInt(uintptr(fds[1]), unix.F_SETPIPE_SZ, pipeSize)
	p.lent++
	return &Pipe{r: fds[0], w: fds[1]}, nil
}

// Return takes a pipe back. One that still holds bytes is closed, so that they never turn up in another connection.
func (p *Pipes) Return(pipe *Pipe) {
	p.lent--
	if pipe.n == 0 && len(p.free) < keepPipes {
		p.free = append(p.free, pipe)
		return
	}
	pipe.close()
	p.Budget.Give(2)
}

// Trim closes the free pipes: for when descriptors are short.
func (p *Pipes) Trim() {
	for _, pipe := range p.free {
		pipe.close()
		p.Budget.Give(2)
	}
	p.free = p.free[:0]
}

// Lent returns how many pipes are borrowed.
func (p *Pipes) Lent() int { return p.lent }
