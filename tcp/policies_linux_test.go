package tcp

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/lb"
)

// web returns the Service with policies and backends that are ready.
func web(p lb.Policies, backends ...netip.AddrPort) *lb.Service {
	s := &lb.Service{ID: lb.ID{Namespace: "default", Name: "web", Protocol: lb.TCP},
		Addresses: []lb.Address{{Addr: frontend}}, Policies: &p}
	for _, b := range backends {
		s.Backends = append(s.Backends, lb.Backend{Addr: b, Ready: true, Serving: true})
	}
	return s
}

// other is a Service that has nothing to do with it.
func other(t *testing.T) *lb.Service {
	return &lb.Service{ID: lb.ID{Name: "other", Protocol: lb.TCP},
		Addresses: []lb.Address{{Addr: netip.MustParseAddrPort("10.96.0.9:80")}},
		Backends:  []lb.Backend{{Addr: refusing(t), Ready: true, Serving: true}}}
}

func (p *proxy) update(services ...*lb.Service) {
	p.t.Helper()
	table, err := lb.NewTable(services, lb.Node{})
	check(p.t, err)
	p.LB.Update(table)
}

// wantReset waits for the reset of a client.
func wantReset(t *testing.T, c *net.TCPConn, what string) {
	t.Helper()
	if _, err := c.Read(make([]byte, 1)); !isReset(err) {
		t.Errorf("%s: %v, want a reset", what, err)
	}
}

// stays exchanges a byte now and then for a time.
func stays(t *testing.T, c *net.TCPConn, d time.Duration, what string) {
	t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); {
		exchange(t, c)
		check(t, c.SetReadDeadline(time.Now().Add(20*time.Millisecond)))
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("%s: %v", what, err)
		}
		check(t, c.SetReadDeadline(time.Now().Add(patience)))
	}
}

// watching returns a backend that echoes, and how connections there have ended.
func watching(t *testing.T) (netip.AddrPort, <-chan error) {
	ends := make(chan error, 10)
	return backend(t, func(c *net.TCPConn) {
		_, err := io.Copy(c, struct{ io.Reader }{c})
		ends <- err
	}), ends
}

// TestDrainReset: both sides of the connections to an endpoint that leaves are reset, those to others are not, nor if
// it terminates and serves; without the policy they stay for good.
func TestDrainReset(t *testing.T) {
	gone, ends := watching(t)
	here := echoing(t)
	p := startProxy(t, nil)
	reset := lb.Policies{OnEndpointRemoved: 1}
	p.update(web(reset, gone))
	first := p.dial()
	exchange(t, first)
	p.update(web(reset, here))
	second := p.dial() // before the first is reset
	exchange(t, second)
	wantReset(t, first, "its endpoint has left")
	select {
	case err := <-ends:
		if !isReset(err) {
			t.Errorf("the endpoint saw %v, want a reset", err)
		}
	case <-time.After(patience):
		t.Error("the endpoint's side is open")
	}
	terminating := web(reset, here, gone)
	terminating.Backends[0].Ready, terminating.Backends[0].Terminating = false, true
	p.update(terminating)
	stays(t, second, 1200*time.Millisecond, "its endpoint terminates and serves")
	p.update(web(lb.Policies{}, gone))
	stays(t, second, 1200*time.Millisecond, "it drains for good")
	p.update(web(reset, gone)) // the policy changes after the endpoint has left
	wantReset(t, second, "another policy")
	p.eventually("both are counted", func(s Stats) bool { return s.DrainReset == 2 && s.Active == 0 })
}

// TestDrainForATime: connections have the time that the policy says, and an endpoint that comes back meanwhile, as one
// that moves to another EndpointSlice, keeps its own. A table without endpoints resets nothing, and a Service that is
// deleted follows its own policy.
func TestDrainForATime(t *testing.T) {
	gone, here := echoing(t), echoing(t)
	p := startProxy(t, nil)
	drain := lb.Policies{OnEndpointRemoved: int64(700 * time.Millisecond)}
	p.update(web(drain, gone), other(t))
	c := p.dial()
	exchange(t, c)
	p.update(web(lb.Policies{OnEndpointRemoved: 1}, here), other(t))
	p.update(web(lb.Policies{OnEndpointRemoved: 1}, here, gone), other(t))
	stays(t, c, 1200*time.Millisecond, "its endpoint was gone for a moment")
	p.update(web(lb.Policies{OnEndpointRemoved: 1}))
	stays(t, c, 1500*time.Millisecond, "no Service has an endpoint")
	p.update(web(drain, here, gone), other(t))
	start := time.Now()
	p.update(other(t))
	stays(t, c, 700*time.Millisecond, "its time is not over")
	wantReset(t, c, "its Service is deleted")
	if took := time.Since(start); took < 1700*time.Millisecond {
		t.Errorf("reset after %v, before the grace and the time of the policy", took)
	}
}

// TestDrainCrossesAHandover: the time of a connection goes on in the next process, also if its Service is deleted.
func TestDrainCrossesAHandover(t *testing.T) {
	for _, deleted := range []bool{false, true} {
		gone, here := echoing(t), echoing(t)
		p := startProxy(t, nil)
		drain := lb.Policies{OnEndpointRemoved: int64(2 * time.Second)}
		p.update(web(drain, gone), other(t))
		c := p.dial()
		exchange(t, c)
		if deleted {
			p.update(other(t))
		} else {
			p.update(web(drain, here), other(t))
		}
		start := time.Now()
		stays(t, c, time.Second, "before")
		next := p.successor(2)
		p.moveTo(next)
		stays(t, c, 500*time.Millisecond, "after")
		wantReset(t, c, "its time is over")
		if took := time.Since(start); took < 2500*time.Millisecond || took > 5*time.Second {
			t.Errorf("deleted %t: reset after %v", deleted, took)
		}
		next.eventually("it is counted", func(s Stats) bool { return s.DrainReset == 1 && s.Active == 0 })
	}
}

// TestIdleTimeout: only what is idle is reset, also by a policy that comes when it is open already, and after a
// hand-over.
func TestIdleTimeout(t *testing.T) {
	p := startProxy(t, nil)
	to := echoing(t)
	p.update(web(lb.Policies{}, to))
	idle, busy := p.dial(), p.dial()
	exchange(t, idle)
	exchange(t, busy)
	p.update(web(lb.Policies{IdleTimeout: int64(500 * time.Millisecond)}, to))
	done := make(chan struct{})
	go func() {
		defer close(done)
		wantReset(t, idle, "idle")
	}()
	stays(t, busy, 1500*time.Millisecond, "busy")
	<-done
	next := p.successor(2)
	p.moveTo(next)
	stays(t, busy, 800*time.Millisecond, "busy after the hand-over")
	wantReset(t, busy, "idle after the hand-over")
	next.eventually("both are counted", func(s Stats) bool { return s.IdleTimedOut == 2 && s.Active == 0 })
}

// TestMaxConnectionDuration: a connection that is busy is reset, too, at different times with jitter.
func TestMaxConnectionDuration(t *testing.T) {
	p := startProxy(t, nil)
	p.update(web(lb.Policies{MaxConnectionDuration: int64(600 * time.Millisecond)}, echoing(t)))
	c := p.dial()
	stays(t, c, 400*time.Millisecond, "younger")
	wantReset(t, c, "old")
	if s := p.Stats(); s.DurationExceeded != 1 {
		t.Errorf("stats %+v", s)
	}
}

// TestHalfCloseTimeouts: a connection of which one side has ended its stream has its own timeout.
func TestHalfCloseTimeouts(t *testing.T) {
	p := startProxy(t, nil)
	release := make(chan struct{})
	to := backend(t, func(*net.TCPConn) { <-release })
	defer close(release)
	p.update(web(lb.Policies{HalfCloseTimeout: int64(300 * time.Millisecond)}, to))
	half, whole := p.dial(), p.dial()
	check(t, half.CloseWrite())
	wantReset(t, half, "half closed")
	p.eventually("it is counted", func(s Stats) bool { return s.HalfCloseTimedOut == 1 && s.Active == 1 })
	ends := backend(t, func(c *net.TCPConn) { _ = c.CloseWrite(); <-release })
	p.update(web(lb.Policies{HalfCloseTimeout: int64(300 * time.Millisecond)}, ends, to))
	for range 2 { // one of them gets the endpoint that ends its stream
		c := p.dial()
		if n, err := c.Write([]byte("x")); n != 1 {
			t.Error(err)
		}
	}
	p.eventually("it is counted", func(s Stats) bool { return s.HalfCloseTimedOut == 2 && s.Active == 2 })
	check(t, whole.CloseWrite())
}

// TestHalfCloseStart: the timeout of a half-closed connection starts with the end of the stream, and not with the last
// byte before it. A hand-over changes neither.
func TestHalfCloseStart(t *testing.T) {
	const timeout, ago = time.Minute, int64(time.Hour)
	for name, tt := range map[string]struct {
		before, after func(*net.TCPConn) error // of the client: around the hand-over
		end           time.Duration            // how long ago the stream ended; 0: as long as it is
		reset         uint64
	}{
		"has not ended":  {},
		"ends before":    {before: (*net.TCPConn).CloseWrite},
		"ends after":     {after: (*net.TCPConn).CloseWrite},
		"ended lately":   {before: (*net.TCPConn).CloseWrite, end: timeout / 4},
		"ended long ago": {before: (*net.TCPConn).CloseWrite, end: 2 * timeout, reset: 1},
	} {
		t.Run(name, func(t *testing.T) {
			release := make(chan struct{})
			to := backend(t, func(c *net.TCPConn) {
				_, _ = io.CopyN(c, c, 1)
				<-release
				_, _ = c.Write([]byte("bye"))
			})
			answers := sync.OnceFunc(func() { close(release) })
			defer answers()
			p := startProxy(t, nil)
			p.update(web(lb.Policies{HalfCloseTimeout: int64(timeout)}, to))
			c := p.dial()
			exchange(t, c)
			if tt.before != nil {
				check(t, tt.before(c))
				p.eventually("the end is seen", func(Stats) bool { return p.ended() })
			}
			m, resume := p.freezeAll()
			p.vanish(resume)
			k := &m.conns[0].Kept
			if k.Active == 0 || (k.ClientEnd != 0) != (tt.before != nil) || k.BackendEnd != 0 {
				t.Errorf("it is frozen with %+v", k)
			}
			if k.Active -= ago; tt.end != 0 {
				k.ClientEnd -= int64(tt.end)
			}
			next := p.successor(2)
			check(t, next.Adopt(m.conns, func() {}))
			for _, l := range m.listening {
				check(t, next.AdoptListener(l))
			}
			if tt.after != nil {
				check(t, tt.after(c))
				next.eventually("the end is seen", func(Stats) bool { return next.ended() })
			}
			if tt.reset != 0 {
				wantReset(t, c, name)
			} else {
				for range 3 { // turns of the loops, in which they look at it
					next.eachShard(func(*shard) {})
				}
				answers()
				if _, err := io.ReadFull(c, make([]byte, 3)); err != nil {
					t.Errorf("the answer to the end: %v", err)
				}
			}
			if s := next.Stats(); s.HalfCloseTimedOut != tt.reset {
				t.Errorf("%d have timed out, want %d", s.HalfCloseTimedOut, tt.reset)
			}
		})
	}
}

// ended reports whether the client of a connection has ended its stream.
func (p *proxy) ended() (is bool) {
	p.eachShard(func(sh *shard) {
		for c := range sh.All() {
			is = is || c.client.EOF
		}
	})
	return is
}

// TestConnectTimeout: a Service has its own number of attempts, and time for each.
func TestConnectTimeout(t *testing.T) {
	p := startProxy(t, func(s *Server) { s.DialTimeouts = []time.Duration{time.Hour} })
	p.update(web(lb.Policies{ConnectTimeout: int64(50 * time.Millisecond), ConnectAttempts: 2}, silent(t), silent(t),
		silent(t)))
	p.expectReset()
	if s := p.Stats(); s.Dials != 2 || s.DialTimedOut != 2 || s.DialGaveUp != 1 {
		t.Errorf("stats %+v", s)
	}
}

// TestKeepalive: the kernel probes both sides of a connection that has settled as its Service has it.
func TestKeepalive(t *testing.T) {
	p := startProxy(t, nil)
	p.update(web(lb.Policies{KeepaliveIdle: 60e9, KeepaliveInterval: 7e9, KeepaliveProbes: 3, UserTimeout: 20e9},
		echoing(t)))
	c := p.dial()
	exchange(t, c)
	p.eventually("it is settled", func(Stats) bool { return !p.settling() })
	p.eachShard(func(sh *shard) {
		for c := range sh.All() {
			for _, s := range c.sides() {
				for option, want := range map[int]int{unix.TCP_KEEPIDLE: 60, unix.TCP_KEEPINTVL: 7,
					unix.TCP_KEEPCNT: 3, unix.TCP_USER_TIMEOUT: 20000} {
					if got, err := unix.GetsockoptInt(s.FD(), unix.IPPROTO_TCP, option); got != want || err != nil {
						t.Errorf("option %d is %d, %v, want %d", option, got, err, want)
					}
				}
			}
		}
	})
}

// TestGoneBeforeTheProcess: that an endpoint has left before this process began crosses a second hand-over, too.
func TestGoneBeforeTheProcess(t *testing.T) {
	gone, here := echoing(t), echoing(t)
	p := startProxy(t, nil)
	drain := lb.Policies{OnEndpointRemoved: int64(2 * time.Hour)}
	p.update(web(drain, gone))
	c := p.dial()
	exchange(t, c)
	p.update(web(drain, here))
	m, resume := p.freezeAll()
	p.vanish(resume)
	m.conns[0].Kept.Gone = -int64(time.Hour)
	next := p.successor(2)
	check(t, next.Adopt(m.conns, func() {}))
	for _, l := range m.listening {
		check(t, next.AdoptListener(l))
	}
	exchange(t, c)
	again := next.moveTo(next.successor(2))
	if k := again.conns[0].Kept; k.Gone != -int64(time.Hour) || k.Drain != 2*time.Hour {
		t.Errorf("the connection is frozen with %+v", k)
	}
}
