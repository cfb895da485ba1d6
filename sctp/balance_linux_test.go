package sctp

import (
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// name has a backend introduce itself, and takes all that it accepts.
func (l *lab) nameAll(accepted []<-chan peer, hosts []*testbed.Host) {
	for i, c := range accepted {
		name := hosts[i].Name
		go func() {
			for p := range c {
				go func() { _ = p.send(message{ppid: 1, data: []byte(name)}) }()
			}
		}()
	}
}

// who returns the name of the backend of a new association, which the caller ends.
func (l *lab) who(p peer) string {
	l.t.Helper()
	m, err := p.receive()
	if err != nil {
		l.t.Fatalf("no name: %v; %+v", err, l.stats())
	}
	return string(m.data)
}

// 500 associations at once are shared out evenly, and each is with its own backend.
func TestManyAtOnce(t *testing.T) {
	const n = 500
	withEach(t, func(t *testing.T, with setup) {
		l := newLab(t, with, testbed.Config{Pods: 4}, false, settings{})
		l.nameAll(l.serve(l.Pods...), l.Pods)
		l.on(l.Client)
		peers := make([]peer, n)
		var all sync.WaitGroup
		for i := range peers {
			all.Go(func() {
				var err error
				if peers[i], err = l.tryDial(l.Client, 0, patience); err != nil {
					t.Errorf("association %d: %v", i, err)
				}
			})
		}
		all.Wait()
		if t.Failed() {
			t.Fatalf("%+v", l.stats())
		}
		share := make(map[string]int)
		for _, p := range peers {
			share[l.who(p)]++
		}
		s := l.stats()
		for _, pod := range l.Pods {
			// A retry, after an attempt of 250 ms on a busy machine, takes a pick of its own.
			if got := share[pod.Name]; got < n/4-int(s.DialTimedOut) || got > n/4+int(s.DialTimedOut) {
				t.Errorf("%s has %d of %d associations, %d attempts timed out", pod, got, n, s.DialTimedOut)
			}
		}
		if s.Active != n || s.Established != n || s.Dialling != 0 {
			t.Errorf("%+v", s)
		}
		for i, p := range peers {
			all.Go(func() {
				switch i % 3 {
				case 0:
					p.abort()
				default:
					if err := p.shutdown(); err != nil {
						t.Errorf("association %d: shutdown: %v", i, err)
					}
				}
			})
		}
		all.Wait()
		l.eventually("all are over", func(s Stats) bool { return s.Active == 0 })
		if s := l.stats(); s.Completed != n-(n+2)/3 || s.ClientAborts != (n+2)/3 {
			t.Errorf("%+v", s)
		}
	})
}

func TestBalance(t *testing.T) {
	withEach(t, func(t *testing.T, with setup) {
		l := newLab(t, with, testbed.Config{Pods: 3}, false, settings{})
		l.nameAll(l.serve(l.Pods...), l.Pods)
		share := make(map[string]int)
		for range 12 {
			p := l.dial(l.Client)
			share[l.who(p)]++
			report(t, p.shutdown())
		}
		for _, pod := range l.Pods {
			if share[pod.Name] != 4 {
				t.Errorf("12 associations in turn: %v", share)
			}
		}
	})
}

func TestAffinity(t *testing.T) {
	withEach(t, func(t *testing.T, with setup) {
		l := newLab(t, with, testbed.Config{Pods: 3, Clients: 2}, false, settings{})
		l.nameAll(l.serve(l.Pods...), l.Pods)
		l.backends(time.Hour, l.Pods...)
		had := make(map[*testbed.Host]string)
		for range 6 {
			for _, c := range l.Clients {
				p := l.dial(c)
				name := l.who(p)
				if had[c] == "" {
					had[c] = name
				}
				if had[c] != name {
					t.Errorf("%s had %s, and now %s", c, had[c], name)
				}
				p.abort()
			}
		}
		if had[l.Clients[0]] == had[l.Clients[1]] {
			t.Errorf("both clients have %s", had[l.Client])
		}
	})
}

// An endpoint that is removed gets no new associations, and keeps those it has.
func TestEndpointRemoval(t *testing.T) {
	withEach(t, func(t *testing.T, with setup) {
		l := newLab(t, with, testbed.Config{Pods: 2}, false, settings{})
		accepted := l.serve(l.Pods...)
		client := l.dial(l.Client)
		at, removed := 0, l.Pods[0]
		var server peer
		select {
		case server = <-accepted[0]:
		case server = <-accepted[1]:
			at, removed = 1, l.Pods[1]
		case <-time.After(patience):
			t.Fatal("no association arrives")
		}
		left := l.Pods[1-at]
		l.backends(0, left)
		for range 3 {
			p := l.dial(l.Client)
			other := l.accept(accepted[1-at])
			ask(t, p, other, message{stream: 1, ppid: 5, data: []byte("to the one that is left")})
			p.abort()
		}
		ask(t, client, server, message{stream: 2, ppid: 6, data: []byte("still there")})
		ask(t, server, client, message{stream: 2, ppid: 7, data: []byte("and so am I")})

		// What has not been answered leaves at once.
		l.on(removed).unlisten(port)
		report(t, server.shutdown())
		expectEnd(t, client, "the client of the removed endpoint")
	})
}

// The end of an association reaches the other side, gracefully or not, whichever
// side begins.
func TestEnds(t *testing.T) {
	withEach(t, func(t *testing.T, with setup) {
		l := newLab(t, with, testbed.Config{Pods: 1}, false, settings{})
		accepted := l.serve(l.Pods...)
		for _, c := range []struct {
			name              string
			byClient, abrupt  bool
			completed, client uint64
			backend           uint64
		}{
			{"client shuts down", true, false, 1, 0, 0},
			{"backend shuts down", false, false, 2, 0, 0},
			{"client aborts", true, true, 2, 1, 0},
			{"backend aborts", false, true, 2, 1, 1},
		} {
			client := l.dial(l.Client)
			server := l.accept(accepted[0])
			ask(t, client, server, message{data: []byte("question")})
			ask(t, server, client, message{data: []byte("answer")})
			one, other := client, server
			if !c.byClient {
				one, other = server, client
			}
			if c.abrupt {
				one.abort()
			} else {
				report(t, one.send(message{stream: 3, data: []byte("last words")}))
				if err := one.shutdown(); err != nil {
					t.Errorf("%s: %v", c.name, err)
				}
				if m, err := other.receive(); err != nil || string(m.data) != "last words" {
					t.Errorf("%s: the other side got %q, %v before the end", c.name, m.data, err)
				}
			}
			expectEnd(t, other, c.name)
			l.eventually(c.name, func(s Stats) bool {
				return s.Active == 0 && s.Completed == c.completed && s.ClientAborts == c.client && s.BackendAborts == c.backend
			})
		}
	})
}

// removeStack takes SCTP from a host.
func (l *lab) removeStack(h *testbed.Host) {
	l.stacks[h].close()
	delete(l.stacks, h)
}

// A backend that refuses, one where SCTP is unknown, and one that is silent are
// passed over.
func TestDialLadder(t *testing.T) {
	withEach(t, func(t *testing.T, with setup) {
		for _, c := range []struct {
			name              string
			spoil             func(l *lab, h *testbed.Host)
			refused, timedOut bool
			after             time.Duration
		}{
			{name: "refusing", spoil: func(l *lab, h *testbed.Host) { l.on(h).unlisten(port) }, refused: true},
			{name: "without SCTP", spoil: func(l *lab, h *testbed.Host) { l.removeStack(h) }, refused: true},
			{name: "silent", spoil: func(l *lab, _ *testbed.Host) { l.blackhole() }, timedOut: true, after: moment() * 4 / 5},
		} {
			t.Run(c.name, func(t *testing.T) {
				l := newLab(t, with, testbed.Config{Pods: 2, RemotePods: 1}, false,
					settings{DialTimeouts: []time.Duration{moment(), patience, patience, patience}})
				hosts := []*testbed.Host{l.Pods[0], l.RemotePods[0]}
				accepted := l.serve(hosts...)
				c.spoil(l, hosts[1])
				seen := false
				for range 4 {
					start := time.Now()
					p := l.dial(l.Client)
					server := l.accept(accepted[0])
					ask(t, p, server, message{data: []byte("x")})
					seen = seen || time.Since(start) >= c.after
					p.abort()
				}
				s := l.stats()
				if !seen || c.refused != (s.DialRefused > 0) || c.timedOut != (s.DialTimedOut > 0) || s.DialGaveUp != 0 || s.Established != 4 {
					t.Errorf("waited as long as an attempt: %v; %+v", seen, s)
				}
			})
		}
	})
}

// blackhole has the remote node vanish, with what is behind it.
func (l *lab) blackhole() {
	l.t.Helper()
	check(l.t, l.RemoteNode.Blackhole(true))
}

// A client is aborted at once if no backend serves it.
func TestNobodyServes(t *testing.T) {
	withEach(t, func(t *testing.T, with setup) {
		l := newLab(t, with, testbed.Config{Pods: 2}, false, settings{})
		l.serve(l.Pods...)
		for _, c := range []struct {
			name  string
			spoil func()
			count func(Stats) uint64
		}{
			{"all refuse", func() {
				for _, h := range l.Pods {
					l.on(h).unlisten(port)
				}
			}, func(s Stats) uint64 { return s.DialGaveUp }},
			{"no backend", func() { l.backends(0) }, func(s Stats) uint64 { return s.NoBackend }},
		} {
			c.spoil()
			p, err := l.tryDial(l.Client, 0, patience) // no longer than the first attempt may take
			if err == nil {
				expectEnd(t, p, c.name)
			}
			if n := c.count(l.stats()); n != 1 {
				t.Errorf("%s: counted %d, %+v", c.name, n, l.stats())
			}
		}
		l.eventually("all are over", func(s Stats) bool { return s.Active == 0 })
	})
}

func TestListen(t *testing.T) {
	withEach(t, func(t *testing.T, with setup) {
		l := newLab(t, with, testbed.Config{Pods: 1}, false, settings{})
		accepted := l.serve(l.Pods...)
		if _, err := l.try(order{Do: "listen", Addr: l.frontend}); err == nil {
			t.Error("a frontend is listened for twice")
		}
		other := netip.AddrPortFrom(l.Node.Alt4, l.frontend.Port())
		l.order(order{Do: "listen", Addr: other})
		any := l.order(order{Do: "listen", Addr: netip.AddrPortFrom(netip.IPv4Unspecified(), 9100)}).Addr
		if _, err := l.try(order{Do: "listen", Addr: netip.AddrPortFrom(l.Node.Addr4, 9100)}); err == nil || !containsErrno(err, unix.EADDRINUSE) {
			t.Errorf("an address of a port that is taken on all: %v", err)
		}
		l.backends(0, l.Pods...)
		own := l.frontend
		for i, f := range []netip.AddrPort{own, other, any, netip.AddrPortFrom(l.Node.Alt4, any.Port()), netip.AddrPortFrom(l.Node.Addr4, any.Port())} {
			if l.frontend = f; f == any {
				continue
			}
			// From one port each time: associations differ by whom they ask.
			p, err := l.tryDial(l.Client, 7777, patience)
			if err != nil {
				t.Fatalf("%v: %v", f, err)
			}
			server := l.accept(accepted[0])
			ask(t, p, server, message{data: []byte(fmt.Sprint(i))})
			defer p.abort()
		}
		l.order(order{Do: "unlisten", Addr: own})
		l.frontend = own
		if p, err := l.tryDial(l.Client, 7778, time.Second); err == nil {
			expectEnd(t, p, "no listener")
		}
		if got := l.order(order{Do: "listen", Addr: netip.AddrPortFrom(l.Node.Addr4, 0)}).Addr; got.Port() == 0 {
			t.Errorf("port 0 became %v", got)
		}
	})
}

func containsErrno(err error, e unix.Errno) bool {
	return len(err.Error()) >= len(e.Error()) && err.Error()[len(err.Error())-len(e.Error()):] == e.Error()
}

// Shutdown waits for associations, takes no new ones, and aborts what is left when
// its time is up.
func TestShutdown(t *testing.T) {
	withEach(t, func(t *testing.T, with setup) {
		for _, patient := range []bool{true, false} {
			l := newLab(t, with, testbed.Config{Pods: 1}, false, settings{})
			client, server := l.associate()
			done := make(chan error)
			timeout := moment()
			if patient {
				timeout = patience
			}
			go func() {
				_, err := l.try(order{Do: "shutdown", Timeout: timeout})
				done <- err
			}()
			ask(t, client, server, message{data: []byte("meanwhile")})
			if patient {
				report(t, client.shutdown())
			}
			select {
			case err := <-done:
				if (err == nil) != patient {
					t.Errorf("Shutdown with patience %v: %v", patient, err)
				}
			case <-time.After(patience):
				t.Fatal("Shutdown does not return")
			}
			expectEnd(t, client, "after Shutdown")
			expectEnd(t, server, "after Shutdown")
		}
	})
}
