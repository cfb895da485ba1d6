package eventloop

import (
	"time"

	"golang.org/x/sys/unix"
)

// Halt stops every loop between two events until resume is called, once. What belongs to the loops may be used by the
// caller meanwhile; what happens to descriptors is reported afterwards. Post still takes functions, and Do waits. The
// error is ErrClosed if a loop has stopped for good; then none is halted.
func (g *Group) Halt() (resume func(), err error) {
	release := make(chan struct{})
	arrived := make(chan struct{}, len(g.loops))
	posted := 0
	for _, l := range g.loops {
		if err = l.Post(func() { arrived <- struct{}{}; <-release }); err != nil {
			break
		}
		posted++
	}
	for _, l := range g.loops[:posted] {
		select {
		case <-arrived:
		case <-l.done:
			err = ErrClosed
		}
	}
	if err != nil {
		close(release)
		return nil, err
	}
	return func() { close(release) }, nil
}

// Left returns how long t has to run, 0 if it is stopped or due.
func (l *Loop) Left(t *Timer) time.Duration {
	if !t.Active() {
		return 0
	}
	return time.Duration(max(t.when*Tick-Now(), 0))
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
