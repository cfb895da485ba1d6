package udp

import (
	"net"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
)

// TestSilentBackendIsEjected: where answers are expected a backend that gives none is ejected, and where they are not
// silence means nothing.
func TestSilentBackendIsEjected(t *testing.T) {
	testbed.Native(t)
	for name, expects := range map[string]bool{"answers are expected": true, "answers are not expected": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			alive, silent := naming(t, "alive"), listenUDP(t, "127.0.0.1:0")
			p := startProxy(t, 1, func(s *Server) {
				s.LB.Outlier, s.IdleTimeout = lb.DefaultOutlier, 20*time.Millisecond
				if wine { // it gives all clients one address, each of which counts once in an interval
					s.LB.Outlier.Interval = int64(time.Millisecond)
				}
			}, alive.addr, silent.addr)
			s := service(1, alive.addr, silent.addr)
			if expects {
				s.Policies = &lb.Policies{UDPResponses: 1}
			}
			p.setServices(s)
			asked := uint64(0)
			ask := func(client byte) { // both
				for range 2 {
					asked++
					dialFrom(t, &net.UDPAddr{IP: net.IPv4(127, 0, 0, client)}, p.addr).send("question")
				}
				eventually(t, "the flows expire", func() bool { return p.Stats().Expired == asked })
			}
			for client := range byte(5) {
				ask(client + 1)
			}
			if !expects {
				if n := p.Stats().NotAnswered; n != 0 || p.LB.Health().Stats().Enforced != 0 {
					t.Errorf("%d were not answered; %+v", n, p.LB.Health().Stats())
				}
				return
			}
			if n := p.Stats().NotAnswered; n != 5 || p.LB.Health().Stats().Active != 1 {
				t.Errorf("%d were not answered, want 5; %+v", n, p.LB.Health().Stats())
			}
			for range 20 {
				if got := dial(t, p.addr).ask("question"); got != "alive" {
					t.Fatalf("%q has answered", got)
				}
			}
		})
	}
}

// TestIdleTimeoutOfAService: flows of a Service expire by its own timeout, whatever the server's is.
func TestIdleTimeoutOfAService(t *testing.T) {
	t.Parallel()
	to := naming(t, "web")
	p := startProxy(t, 1, func(s *Server) { s.IdleTimeout = time.Hour }, to.addr)
	s := service(1, to.addr)
	s.Policies = &lb.Policies{UDPIdleTimeout: int64(100 * time.Millisecond)}
	p.setServices(s)
	dial(t, p.addr).send("question")
	eventually(t, "the flow expires", func() bool { return p.Stats().Expired == 1 })
}
