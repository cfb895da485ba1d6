package tcp

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/socket"
	"github.com/sluice-lb/sluice/lb"
)

const (
	// acceptTurn is how many connections one listener may accept before the other
	// descriptors of its loop have their turn: some 15 ms of work. Of 1,000 that come at
	// once the last are answered after twice the time if it is 64.
	acceptTurn = 256

	// acceptRetry is how often a paused loop looks whether it may accept again.
	acceptRetry = 10 * time.Millisecond
)

// listener is one loop's socket of a listening address.
type listener struct {
	sh      *shard
	fd      int
	steered bool // the frontend is the original destination, not the local address
	paused  bool // has, or may have, connections that could not be taken yet
}

func (l *listener) start(backlog int) error {
	if err := unix.Listen(l.fd, backlog); err != nil {
		return err
	}
	var err error
	if doErr := l.sh.loop.Do(func() {
		l.sh.open[l] = struct{}{}
		err = l.sh.loop.AddRead(l.fd, l)
	}); doErr != nil {
		return doErr
	}
	return err
}

// stop takes what the kernel has completed and closes the socket.
func (l *listener) stop() {
	if _, started := l.sh.open[l]; started {
		for range l.sh.srv.backlog() { // bounded: new ones may keep coming
			if !l.accept() {
				break
			}
		}
		delete(l.sh.open, l)
	}
	_ = l.sh.loop.Close(l.fd)
}

// HandleEvent accepts what is there.
func (l *listener) HandleEvent(eventloop.Event) {
	for range acceptTurn {
		if !l.accept() {
			return
		}
	}
	if err := l.sh.loop.RearmRead(l.fd); err != nil {
		l.pause() // no event would tell us of the rest
	}
}

// accept takes one connection and reports whether there may be more right now.
func (l *listener) accept() bool {
	sh := l.sh
	if sh.count.dialling.Load() >= sh.srv.maxDials() {
		sh.count.pausedDials.Add(1)
		l.pause()
		return false
	}
	if d := sh.srv.Descriptors; d != nil && !d.Take(2) {
		sh.loop.Pipes().Trim() // some may be found there the next time
		sh.count.pausedDescriptors.Add(1)
		l.pause()
		return false
	}
	fd, peer, err := socket.Accept(l.fd)
	if err == nil {
		l.serve(fd, lb.Flow{Client: peer.Addr(), Now: eventloop.Now()})
		return true
	}
	sh.giveDescriptors()
	switch err {
	case unix.EAGAIN:
		return false
	case unix.ECONNABORTED, unix.EINTR, unix.EPROTO:
		return true // this one has gone; accept(2) says to try again
	case unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM:
		sh.count.pausedDescriptors.Add(1)
	default:
		sh.count.acceptErrors.Add(1)
	}
	l.pause()
	return false
}

func (sh *shard) giveDescriptors() {
	if d := sh.srv.Descriptors; d != nil {
		d.Give(2)
	}
}

// pause leaves the clients in the backlog and has the shard look again soon. A
// timer and not the end of a connection wakes it: what frees descriptors may
// belong to another loop or another protocol.
func (l *listener) pause() {
	l.paused = true
	if !l.sh.retry.Active() {
		l.sh.loop.After(&l.sh.retry, l.sh, acceptRetry)
	}
}

// Expire settles connections, or accepts again on the paused listeners.
func (sh *shard) Expire(t *eventloop.Timer) {
	if t == &sh.settle {
		sh.settleSome()
		return
	}
	for l := range sh.open {
		if l.paused {
			l.paused = false
			l.HandleEvent(eventloop.Readable)
		}
	}
}

// serve starts a connection for an accepted client. It owns fd from now on.
func (l *listener) serve(fd int, flow lb.Flow) {
	sh := l.sh
	sh.count.accepted.Add(1)
	sh.count.active.Add(1)
	c := &conn{sh: sh}
	c.client = side{c: c, fd: int32(fd), writable: true}
	c.backend = side{c: c, fd: -1}
	sh.insert(c)
	if !sh.settle.Active() {
		sh.loop.After(&sh.settle, sh, settleAfter)
	}

	ask := socket.Local
	if l.steered {
		ask = sh.srv.OriginalDst
	}
	dst, err := ask(fd)
	if err != nil { // the client was not steered here, or has gone already
		sh.count.noService.Add(1)
		c.abort()
		return
	}
	flow.Frontend = lb.Frontend{Protocol: lb.TCP, Addr: dst}
	if err := sh.loop.Add(fd, &c.client); err != nil {
		sh.count.shortages.Add(1)
		c.abort()
		return
	}
	c.startDial(flow)
}
