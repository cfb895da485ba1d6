package sctp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/sctp/engine"
	"github.com/sluice-lb/sluice/sctp/packet"
)

// upgrade makes another Server, with so many loops, take over from the present one, whose
// process ends as far as that can be done within one: its descriptors are closed.
func (p *proxied) upgrade(loops int) error {
	group, err := eventloop.NewGroup(loops)
	if err != nil {
		return err
	}
	old, oldLoops := p.server, p.loops
	// The balancer of the old process does not take part any more either.
	p.balancer = newBalancer(loops)
	next := &Server{Config: old.Config}
	next.Loops, next.LB = group, p.balancer
	p.loops, p.server = group, next
	if err := p.update(); err != nil {
		return err
	}
	var olds, news []int
	give := func(fd *int) {
		if *fd >= 0 && err == nil {
			olds = append(olds, *fd)
			*fd, err = unix.FcntlInt(uintptr(*fd), unix.F_DUPFD_CLOEXEC, 0)
			news = append(news, *fd)
		}
	}
	held := old.Holding()
	held.FDs(give)
	if err = errors.Join(err, next.CanAdopt(&held)); err != nil {
		return err
	}
	resume, err := oldLoops.Halt()
	if err != nil {
		return err
	}
	var assocs []Frozen
	err = old.Freeze(func(f *Frozen) error {
		if s := f.Sockets; s != nil {
			give(&s.Client)
			give(&s.Backend)
			for _, w := range [...]*engine.Way{&s.ToBackend, &s.ToClient} {
				w.Partial, w.Whole = bytes.Clone(w.Partial), bytes.Clone(w.Whole)
			}
		}
		if f.Dial != nil {
			f.Dial.Init = bytes.Clone(f.Dial.Init)
		}
		assocs = append(assocs, *f)
		return err
	})
	if err != nil {
		return err
	}
	stats := old.Stats()
	for _, fd := range olds {
		for _, loop := range oldLoops.Loops() {
			_ = loop.Detach(fd) // fails on all loops but one
		}
	}
	own := slices.DeleteFunc(routers(), func(fd int) bool { return slices.Contains(slices.Concat(olds, news), fd) })
	err = closeAll(append(olds, own...))
	resume()
	err = errors.Join(err, oldLoops.Close())
	thawed := make(chan struct{}, len(assocs))
	err = errors.Join(err, withoutDescriptors(func() error {
		return next.Adopt(held, assocs, func() { thawed <- struct{}{} })
	}))
	next.Restore(stats)
	if len(thawed) != len(assocs) {
		err = errors.Join(err, fmt.Errorf("%d of %d associations go on", len(thawed), len(assocs)))
	}
	if after := next.Stats(); after.Accepted < stats.Accepted || after.BytesOut < stats.BytesOut {
		err = errors.Join(err, fmt.Errorf("before:\n%+v\nafterwards:\n%+v", stats, after))
	}
	return err
}

// withoutDescriptors runs do while no descriptor can be opened.
func withoutDescriptors(do func() error) error {
	restore, err := testbed.LimitDescriptors(0)
	if err != nil {
		return err
	}
	return errors.Join(do(), restore())
}

// routers returns the datagram sockets of the process, which ask for routes.
func routers() (fds []int) {
	for fd := range 1024 {
		if kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE); err == nil && kind == unix.SOCK_DGRAM {
			fds = append(fds, fd)
		}
	}
	return fds
}

func closeAll(fds []int) (err error) {
	for _, fd := range fds {
		err = errors.Join(err, unix.Close(fd))
	}
	return err
}

// Associations go on through upgrades, message by message, whatever the number of loops;
// those that are being made are made, and each ends as it would have.
func TestUpgrades(t *testing.T) {
	withEach(t, func(t *testing.T, with setup) {
		const held, upgrades = 6, 5
		l := newLab(t, with, testbed.Config{Pods: 2}, false, settings{})
		accepted := l.serve(l.Pods...)
		l.on(l.Client) // before it is asked for by many
		stop := make(chan struct{})
		var all sync.WaitGroup
		for range held {
			all.Go(func() { l.exchange(l.Client, accepted, stop) })
		}
		for i := range upgrades {
			before := l.stats().MessagesOut
			l.order(order{Do: "upgrade", Loops: 1 + i%3})
			l.eventually("messages go on", func(s Stats) bool { return s.MessagesOut >= before+3*held })
		}
		close(stop)
		all.Wait()
		l.eventually("all have ended", func(s Stats) bool { return s.Active == 0 })
		// What opens while there are upgrades is not among held.
		if s := l.stats(); s.Completed != s.Accepted || s.Established != s.Accepted || s.ClientAborts+s.BackendAborts+s.Expired+s.DialGaveUp != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// exchange asks over one association until stop, each time for something different, and
// over a short one between any two.
func (l *lab) exchange(from *testbed.Host, accepted []<-chan peer, stop <-chan struct{}) {
	answer := func(p peer) {
		for {
			m, err := p.receive()
			if err != nil {
				if err != io.EOF {
					l.t.Errorf("server: %v", err)
				}
				return
			}
			if err := p.send(m); err != nil {
				l.t.Errorf("server: %v", err)
				return
			}
		}
	}
	var servers sync.WaitGroup
	defer servers.Wait()
	open := func() (peer, bool) {
		p, err := l.tryDial(from, 0, patience)
		if err != nil {
			l.t.Errorf("client: %v", err)
			return nil, false
		}
		select {
		case other := <-accepted[0]:
			servers.Go(func() { answer(other) })
		case other := <-accepted[1]:
			servers.Go(func() { answer(other) })
		case <-time.After(patience):
			l.t.Error("no association arrives")
			return nil, false
		}
		return p, true
	}
	ask := func(p peer, n uint64) bool {
		want := bulkMessage(1, uint16(n%bulkStreams), n)
		if n%8 != 0 { // so that there are many
			want.data = want.data[:min(len(want.data), 500)]
		}
		if err := p.send(want); err != nil {
			l.t.Errorf("client: message %d: %v", n, err)
			return false
		}
		got, err := p.receive()
		if err != nil || got.stream != want.stream || got.ppid != want.ppid || !bytes.Equal(got.data, want.data) {
			l.t.Errorf("client: message %d of %d bytes comes back as %d bytes of stream %d: %v", n, len(want.data), len(got.data), got.stream, err)
			return false
		}
		return true
	}
	long, ok := open()
	for n := uint64(0); ok; n++ {
		select {
		case <-stop:
			report(l.t, long.shutdown())
			return
		default:
		}
		var short peer
		if ok = ask(long, n); !ok {
			return
		}
		if short, ok = open(); !ok || !ask(short, n) {
			return
		}
		report(l.t, short.shutdown())
	}
}

// A Server goes on with the engine that there was, and with no other.
func TestCanAdopt(t *testing.T) {
	for _, test := range []struct {
		forced Engine
		held   Holding
		ok     bool
	}{
		{Auto, Holding{}, true},
		{Packet, Holding{}, true},
		{Auto, Holding{Engine: Packet, Shares: 2}, true},
		{Packet, Holding{Engine: Packet, Shares: packet.MaxShards}, true},
		{Socket, Holding{Engine: Socket}, true},
		{Socket, Holding{Engine: Packet, Shares: 2}, false},
		{Packet, Holding{Engine: Socket}, false},
		{Auto, Holding{Engine: Packet}, false},
		{Auto, Holding{Engine: Packet, Shares: packet.MaxShards + 1}, false},
		{Auto, Holding{Engine: 7}, false},
	} {
		if err := (&Server{Engine: test.forced}).CanAdopt(&test.held); (err == nil) != test.ok {
			t.Errorf("engine %v is forced, and there was %+v: %v", test.forced, test.held, err)
		}
	}
}

// An association whose backend leads back to us, which the process before has let be, is aborted towards both sides by
// the one that takes over; another goes on.
func TestLoopEndsWithTheMove(t *testing.T) {
	withEach(t, func(t *testing.T, with setup) {
		l := newLab(t, with, testbed.Config{Pods: 2}, false, settings{})
		accepted := l.serve(l.Pods...)
		var clients, servers [2]peer
		for i := range clients {
			l.backends(0, l.Pods[i])
			clients[i] = l.dial(l.Client)
			servers[i] = l.accept(accepted[i])
			ask(t, clients[i], servers[i], message{data: []byte("question")})
		}
		to := func(i int) netip.AddrPort { return l.Pods[i].At(l.ipv6, port) }
		l.order(order{Do: "table", Backends: []netip.AddrPort{to(0), to(1)}, Owned: []netip.AddrPort{to(0)}})
		l.order(order{Do: "upgrade", Loops: 2})
		expectEnd(t, clients[0], "the client of a loop")
		expectEnd(t, servers[0], "the server of a loop")
		ask(t, clients[1], servers[1], message{data: []byte("another question")})
		l.eventually("one association is left", func(s Stats) bool { return s.Active == 1 })
	})
}
