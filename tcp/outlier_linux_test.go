package tcp

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

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

// TestEjected: of three backends one is dead. After five failed dials none of 1,000 requests goes there, the others have
// exact turns, and it has its turns again once a trial has passed.
func TestEjected(t *testing.T) {
	for name, dead := range map[string]netip.AddrPort{"refuses": refusing(t), "is silent": silent(t)} {
		t.Run(name, func(t *testing.T) {
			p := startProxy(t, ejecting, naming(t, "a"), naming(t, "b"), dead)
			p.ask(15)
			before := p.Stats()
			if failed := before.DialRefused + before.DialTimedOut; failed != 5 || p.LB.OutlierStats().Active != 1 {
				t.Fatalf("%d dials have failed, want 5; %+v", failed, p.LB.OutlierStats())
			}
			if got := p.ask(1000); got["a"] != 500 || got["b"] != 500 {
				t.Errorf("the others have answered %v, want 500 each", got)
			}
			if now := p.Stats(); now.Dials != before.Dials+1000 {
				t.Errorf("%d dials for 1,000 requests", now.Dials-before.Dials)
			}
			due, _ := p.LB.Trials(eventloop.Now()+lb.DefaultOutlier.BaseEjectionTime, 9)
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
	s, o := p.Stats(), p.LB.OutlierStats()
	if s.DialGaveUp != 50 || s.DialRefused != 150 || o.Enforced != 0 || o.Spared == 0 {
		t.Errorf("stats %+v, ejections %+v: want that none is ejected", s, o)
	}
}
