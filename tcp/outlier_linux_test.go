package tcp

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/lb"
)

// ejecting has startProxy start a Server that ejects, and waits for no silent backend for long.
func ejecting(s *Server) {
	s.LB.Outlier = lb.DefaultOutlier
	s.DialTimeouts = []time.Duration{50 * time.Millisecond, 50 * time.Millisecond, 50 * time.Millisecond}
}

// ask makes n requests, and returns how often each of the backends has answered.
func (p *proxy) ask(n int) map[string]int {
	p.t.Helper()
	answers := make(map[string]int)
	for range n {
		c := p.dial()
		name, err := io.ReadAll(c)
		if err != nil {
			p.t.Fatalf("request %v: %v", answers, err)
		}
		_ = c.Close()
		answers[string(name)]++
	}
	return answers
}

// TestEjected: of three backends one is dead. After five failed dials none of 1,000 requests goes there, the others
// have exact turns, and it has its turns again once a trial has passed.
func TestEjected(t *testing.T) {
	for name, dead := range map[string]netip.AddrPort{"refuses": refusing(t), "is silent": silent(t)} {
		t.Run(name, func(t *testing.T) {
			p := startProxy(t, ejecting, naming(t, "a"), naming(t, "b"), dead)
			p.ask(15)
			before := p.Stats()
			if failed := before.DialRefused + before.DialTimedOut; failed != 5 || p.LB.Health().Stats().Active != 1 {
				t.Fatalf("%d dials have failed, want 5; %+v", failed, p.LB.Health().Stats())
			}
			if got := p.ask(1000); got["a"] != 500 || got["b"] != 500 {
				t.Errorf("the others have answered %v, want 500 each", got)
			}
			if now := p.Stats(); now.Dials != before.Dials+1000 {
				t.Errorf("%d dials for 1,000 requests", now.Dials-before.Dials)
			}
			due, _ := p.LB.Health().Trials(eventloop.Now()+lb.DefaultOutlier.BaseEjectionTime, 9)
			if len(due) != 1 || due[0].Backend() != dead {
				t.Fatalf("trials are due of %v, want %s", due, dead)
			}
			if name != "refuses" {
				return
			}
			l, err := net.Listen("tcp", dead.String())
			check(t, err)
			defer l.Close()
			go func() {
				for c, err := l.Accept(); err == nil; c, err = l.Accept() {
					_, _ = c.Write([]byte("back"))
					_ = c.Close()
				}
			}()
			due[0].Passed(eventloop.Now())
			if got := p.ask(300); got["a"] != 100 || got["b"] != 100 || got["back"] != 100 {
				t.Errorf("after its return: %v, want 100 each", got)
			}
		})
	}
}

// TestAllDeadAreTried: with all backends dead none is ejected, and the client is reset as ever.
func TestAllDeadAreTried(t *testing.T) {
	p := startProxy(t, ejecting, refusing(t), refusing(t), refusing(t))
	for range 50 {
		p.expectReset()
	}
	s, o := p.Stats(), p.LB.Health().Stats()
	if s.DialGaveUp != 50 || s.DialRefused != 150 || o.Enforced != 0 || o.Spared == 0 {
		t.Errorf("stats %+v, ejections %+v: want that none is ejected", s, o)
	}
}

// TestEjectedOfMany: after five failed dials none of 1,000 requests goes to a backend that refuses, however many there
// are, and the others have exact turns.
func TestEjectedOfMany(t *testing.T) {
	for _, n := range []int{2, 10, 100} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			var backends []netip.AddrPort
			for i := 1; i < n; i++ {
				backends = append(backends, naming(t, fmt.Sprint(i)))
			}
			backends = append(backends, refusing(t)) // at last: its port is free for others
			p := startProxy(t, ejecting, backends...)
			p.ask(5 * n)
			before, rounds := p.Stats(), (1000+n-2)/(n-1)
			got := p.ask(rounds * (n - 1))
			for name, times := range got {
				if times != rounds {
					t.Errorf("%s has answered %d times, want %d", name, times, rounds)
				}
			}
			if now := p.Stats(); before.DialRefused != 5 || now.DialRefused != 5 || len(got) != n-1 {
				t.Errorf("%d dials were refused at first and %d in the end, want 5; %d backends have answered",
					before.DialRefused, now.DialRefused, len(got))
			}
		})
	}
}

// TestResettingBackendIsEjected: a backend that accepts and resets before it has sent anything is ejected; one that
// resets after that is not.
func TestResettingBackendIsEjected(t *testing.T) {
	for says, want := range map[string]uint64{"": 1, "b": 0} {
		p := startProxy(t, ejecting, naming(t, "a"), backend(t, func(c *net.TCPConn) {
			if says != "" {
				_, _ = io.WriteString(c, says)
				_, _ = c.Read(make([]byte, 1)) // until the client has heard it
			}
			_ = c.SetLinger(0)
		}))
		for i := range byte(20) {
			c := p.tryDialFrom(i + 1)
			if c == nil {
				continue
			}
			first := make([]byte, 1)
			if n, _ := c.Read(first); n > 0 && first[0] == 'b' {
				_, err := c.Write(first)
				check(t, err)
			}
			_, _ = io.ReadAll(c) // until it is reset or ends
			_ = c.Close()
		}
		s, o := p.Stats(), p.LB.Health().Stats()
		resets := s.BackendResets + s.DialRefused // before it was seen that it has accepted
		if o.Enforced != want || resets != 10-5*want {
			t.Errorf("after %q: %d resets, %+v, want %d ejected", says, resets, o, want)
		}
	}
}

// TestFlappingBackend: a backend that resets every second connection is not ejected, as it never fails five times in a
// row.
func TestFlappingBackend(t *testing.T) {
	var turns atomic.Int64
	p := startProxy(t, ejecting, naming(t, "a"), backend(t, func(c *net.TCPConn) {
		if turns.Add(1)%2 == 0 {
			_ = c.SetLinger(0)
			return
		}
		_, _ = io.WriteString(c, "b")
	}))
	got := make(map[string]int)
	for range 100 {
		var name []byte
		if c := p.tryDial(); c != nil {
			name, _ = io.ReadAll(c)
			_ = c.Close()
		}
		got[string(name)]++
	}
	tried := int(p.Stats().DialRefused) // at "a", where the loop has not seen that "b" has accepted
	if got["a"] != 50+tried || got["b"] != 25 || got[""] != 25-tried || p.LB.Health().Stats().Enforced != 0 {
		t.Errorf("%v, %+v", got, p.LB.Health().Stats())
	}
}

// tryDial connects as dial does; nil: the reset came before the client has seen that it is accepted.
func (p *proxy) tryDial() net.Conn { return p.tryDialFrom(1) }

// tryDialFrom does so as one of several clients.
func (p *proxy) tryDialFrom(client byte) net.Conn {
	p.t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, client)}}
	c, err := d.Dial("tcp", p.addr.String())
	if errors.Is(err, unix.ECONNRESET) {
		return nil
	}
	check(p.t, err)
	check(p.t, c.SetDeadline(time.Now().Add(patience)))
	return c
}
