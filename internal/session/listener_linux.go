package session

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/socket"
)

// acceptBatch is how many connections a listener may accept before the other descriptors of its loop are served: some
// 15 ms of work. Of 1,000 that come at once the last are answered after twice the time if it is 64.
const acceptBatch = 256

// backlog is the length of a listen queue. The kernel caps it at net.core.somaxconn (listen(2)).
const backlog = 4096

// Listener is one loop's socket of a listening address.
type Listener[C Owner[C]] struct {
	FD     int
	sh     *Shard[C]
	serve  func(fd int, peer netip.AddrPort)
	paused bool // has, or may have, connections that could not be accepted yet
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
		}
		_ = l.sh.Loop.Close(l.FD)
	}); err != nil {
		_ = unix.Close(l.FD) // the loop has ended and does not use it
	}
}

// HandleEvent accepts what is there.
func (l *Listener[C]) HandleEvent(eventloop.Event) {
	for range acceptBatch {
		if !l.accept() {
			return
		}
	}
	if err := l.sh.Loop.RearmRead(l.FD); err != nil {
		l.pause() // no event would report the rest
	}
}

// accept accepts one connection and reports whether there may be more right now.
func (l *Listener[C]) accept() bool {
	sh := l.sh
	if sh.Count.Dialling.Load() >= int64(sh.MaxDials) {
		sh.Count.PausedDials.Add(1)
		l.pause()
		return false
	}
	if !sh.Descriptors.Take(2) {
		sh.Loop.Pipes.Trim() // some may be found there the next time
		sh.Count.PausedDescriptors.Add(1)
		l.pause()
		return false
	}
	fd, peer, err := socket.Accept(l.FD)
	if err == nil {
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
