package session

import (
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/socket"
	"github.com/sluice-lb/sluice/lb"
)

// backlog is the length of a listen queue. The kernel caps it at net.core.somaxconn (listen(2)).
const backlog = 4096

// Listener is one loop's socket of a listening address.
type Listener[C Owner[C]] struct {
	FD     int
	sh     *Shard[C]
	serve  func(fd int, peer netip.AddrPort)
	paused bool // has, or may have, connections that could not be accepted yet

	pending bool // is among those of the shard
}

// NewListener makes a Listener of a bound socket, which it owns. serve is called on the loop for each accepted
// client, and owns the socket and two descriptors of the budget from then on.
func (sh *Shard[C]) NewListener(fd int, serve func(fd int, peer netip.AddrPort)) *Listener[C] {
	return &Listener[C]{FD: fd, sh: sh, serve: serve}
}

// Start starts accepting. It waits for the loop. After an error Close is still to be called.
func (l *Listener[C]) Start() error {
	if err := unix.Listen(l.FD, backlog); err != nil {
		return err
	}
	var err error
	if doErr := l.sh.Loop.Do(func() {
		if err = l.sh.Loop.AddRead(l.FD, l); err == nil {
			l.sh.listeners[l] = struct{}{}
		}
	}); doErr != nil {
		return doErr
	}
	return err
}

// Close accepts what the kernel has completed and closes the socket. It waits for the loop.
func (l *Listener[C]) Close() {
	if err := l.sh.Loop.Do(func() {
		if _, started := l.sh.listeners[l]; started {
			for range backlog { // bounded: new ones may keep coming
				if !l.accept() {
					break
				}
			}
			delete(l.sh.listeners, l)
			l.sh.pending = slices.DeleteFunc(l.sh.pending, func(p *Listener[C]) bool { return p == l })
		}
		_ = l.sh.Loop.Close(l.FD)
	}); err != nil {
		_ = unix.Close(l.FD) // the loop has ended and does not use it
	}
}

// HandleEvent has the shard accept what is there at the end of the turn.
func (l *Listener[C]) HandleEvent(eventloop.Event) {
	if !l.pending {
		l.pending = true
		l.sh.pending = append(l.sh.pending, l)
	}
	l.sh.serveLater()
}

// serveLater has the loop call ServeLate at the end of the turn.
func (sh *Shard[C]) serveLater() {
	if !sh.late {
		sh.late = true
		sh.Loop.Late(sh)
	}
}

// acceptBudget is how long the listeners of a turn accept at most, in ns. One listen queue is for all Services: as long
// as it is not empty, a client of each of them waits behind those of the others. So it is emptied before clients are
// dialled for, which costs several times as much; from here on each Service has a queue of its own.
const acceptBudget = int64(300 * time.Microsecond)

// ServeLate accepts, and then makes the dials that are ready, for as long as there was until the deadline.
func (sh *Shard[C]) ServeLate(deadline int64) (more bool) {
	budget := deadline - eventloop.Now()
	each := acceptBudget / int64(max(len(sh.pending), 1))
	left := sh.pending[:0]
	for _, l := range sh.pending {
		if l.pending = l.acceptUntil(eventloop.Now() + each); l.pending {
			left = append(left, l)
		}
	}
	sh.pending = left
	deadline = eventloop.Now() + budget
	for ready := sh.rota.take(); ready != nil; ready = sh.rota.take() {
		if ready.value.next(); eventloop.Now() >= deadline {
			break
		}
	}
	sh.late = len(sh.pending)+len(sh.rota.queues) > 0
	return sh.late
}

// acceptUntil accepts until there is no client (false), or the time is over.
func (l *Listener[C]) acceptUntil(deadline int64) (more bool) {
	for l.accept() {
		if eventloop.Now() >= deadline {
			return true
		}
	}
	return false
}

// accept accepts one connection and reports whether there may be more right now.
func (l *Listener[C]) accept() bool {
	sh := l.sh
	old := sh.old()
	crowded := sh.Count.Dialling.Load() >= int64(sh.MaxDials)
	if crowded && old == nil {
		sh.Count.PausedDials.Add(1)
		l.pause()
		return false
	}
	if !sh.Descriptors.Take(2) {
		if old == nil {
			sh.Loop.Pipes.Trim() // some may be found there the next time
			sh.Count.PausedDescriptors.Add(1)
			l.pause()
			return false
		}
		crowded = true
		sh.Descriptors.Adopt(2) // the old dial gives as many back
	}
	fd, peer, err := socket.Accept(l.FD)
	if err == nil {
		if crowded {
			sh.Count.DialEvicted.Add(1)
			sh.because(old.owner, lb.NoResource)
			sh.Abort(old.owner)
		}
		sh.Count.Accepted.Add(1)
		l.serve(fd, peer)
		return true
	}
	sh.Descriptors.Give(2)
	switch err {
	case unix.EAGAIN:
		return false
	case unix.ECONNABORTED, unix.EINTR, unix.EPROTO:
		return true // this one has gone; accept(2) says to try again
	case unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM:
		sh.Count.PausedDescriptors.Add(1)
	default:
		sh.Count.AcceptErrors.Add(1)
	}
	l.pause()
	return false
}

// pause leaves the clients in the backlog until a timer wakes it: descriptors may be freed by another loop or protocol.
func (l *Listener[C]) pause() {
	l.paused = true
	if !l.sh.retry.Active() {
		l.sh.Loop.After(&l.sh.retry, l.sh, AcceptRetry)
	}
}

// Expire accepts again on the paused listeners.
func (sh *Shard[C]) Expire(*eventloop.Timer) {
	for l := range sh.listeners {
		if l.paused {
			l.paused = false
			l.HandleEvent(eventloop.Readable)
		}
	}
}
