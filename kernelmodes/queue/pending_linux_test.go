package queue

import (
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/bench/testbed"
	"github.com/sluice-lb/sluice/kernelmodes/lab"
	"github.com/sluice-lb/sluice/lb"
)

// limited is a node whose Service has one endpoint with room for one connection, which a client has.
func limited(t *testing.T, v6 bool, policies lb.Policies) (n *node, s lb.Service, first net.Conn) {
	t.Helper()
	n = newNode(t, testbed.Config{Pods: 1})
	policies.MaxEndpointConnections = 1
	b := lab.Backend(n.Pods[0], v6, 8080)
	testbed.Keep(t)(n.Pods[0].EchoTCP(b.Addr.String()))
	s = lab.Simple("web", lab.VIP(v6, 1).String(), 80, lb.TCP, b)
	s.Policies = &policies
	n.Sync(s)
	return n, s, n.open(&s, 1)[0]
}

// TestPending: clients for which no endpoint has room wait, and are served one after the other, in the order in which
// they came.
func TestPending(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		t.Run(lab.Family(v6), func(t *testing.T) {
			t.Parallel()
			const clients = 5
			n, s, last := limited(t, v6, lb.Policies{QueueTimeout: int64(testbed.Patience)})
			served, conns := n.asks(&s, clients)
			if view, _ := n.Balancer.View(s.ID); view.Stats.Queued != clients {
				t.Errorf("%d wait, want %d", view.Stats.Queued, clients)
			}
			for i := range clients {
				testbed.Check(t, last.Close())
				testbed.Check(t, <-served[i])
				last = conns[i]
				(&testbed.Talker{T: t, Conn: last}).Echoes()
				n.awaits(&s, 1)
				for _, later := range served[i+1:] {
					if len(later) > 0 {
						t.Fatalf("another is served beside client %d", i)
					}
				}
			}
			if got := n.Stats(); got.Holds.All != clients || got.Holds.Held != 0 || got.Holds.Expired != 0 ||
				got.Chosen != clients+1 || got.Limited != 0 || got.Undecided != 0 {
				t.Errorf("%+v, want %d that have waited", got, clients)
			}
		})
	}
}

// TestPendingEnds: a client that has waited for long enough is reset, at once where as many wait as may, or none; one
// that waits when the server ends sends again, and is served by the next choice.
func TestPendingEnds(t *testing.T) {
	t.Parallel()
	const timeout = 300 * time.Millisecond
	n, s, first := limited(t, false, lb.Policies{QueueTimeout: int64(timeout), MaxPendingConnections: -1})
	refused := func(what string) time.Duration {
		t.Helper()
		begun := time.Now()
		if _, err := n.dial(&s, testbed.Patience); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: %v, want refused", what, err)
		}
		return time.Since(begun)
	}
	refused("where none waits")
	if got := n.Stats(); got.Holds.Full != 1 || got.Holds.All != 0 || got.Limited != 1 {
		t.Errorf("%+v, want one for which there was no place", got)
	}
	s.Policies = &lb.Policies{MaxEndpointConnections: 1, QueueTimeout: int64(timeout)}
	n.Sync(s)
	if after := refused("one that waits"); after < timeout {
		t.Errorf("refused after %v, want %v", after, timeout)
	}
	if got := n.Stats(); got.Holds.Expired != 1 || got.Holds.Held != 0 || got.Limited != 2 {
		t.Errorf("%+v, want one that has expired", got)
	}
	if view, _ := n.Balancer.View(s.ID); view.Stats.Queued != 0 || view.Stats.Limited != 2 {
		t.Errorf("%+v, want none that waits, and two that were refused", view.Stats)
	}
	s.Policies = &lb.Policies{MaxEndpointConnections: 1, QueueTimeout: int64(time.Hour), MaxPendingConnections: 1}
	n.Sync(s)
	served, conns := n.asks(&s, 1)
	refused("a second")
	testbed.Check(t, n.Server.Close())
	testbed.Check(t, <-served[0]) // by the rules
	testbed.Check(t, conns[0].Close())
	testbed.Check(t, first.Close())
	if view, _ := n.Balancer.View(s.ID); view.Stats.Queued != 0 || view.Stats.Backends[0].InFlight != 0 {
		t.Errorf("%+v, want none after the end", view.Stats)
	}
}

// TestPendingChanges: those that wait go on when there is another endpoint, or no limit any more, and wait for an
// endpoint, if they may, when there is none.
func TestPendingChanges(t *testing.T) {
	t.Parallel()
	n, s, first := limited(t, false, lb.Policies{QueueTimeout: int64(time.Hour)})
	b := lab.Backend(n.Pods[0], false, 8081)
	testbed.Keep(t)(n.Pods[0].EchoTCP(b.Addr.String()))
	served, _ := n.asks(&s, 1)
	s.Backends = append(s.Backends, b)
	n.Sync(s)
	testbed.Check(t, <-served[0])
	n.awaits(&s, 1, 1)
	served, _ = n.asks(&s, 2)
	s.Policies = &lb.Policies{}
	n.Sync(s)
	testbed.Check(t, errors.Join(<-served[0], <-served[1]))
	s.Policies = &lb.Policies{MaxEndpointConnections: 1, QueueTimeout: int64(time.Hour), Hold: int64(time.Hour)}
	n.Sync(s)
	served, _ = n.asks(&s, 1)
	all := s.Backends
	s.Backends = nil
	n.Sync(s)
	testbed.Eventually(t, "it waits for an endpoint", func() bool {
		view, _ := n.Balancer.View(s.ID)
		return view.Stats.Held == 1 && view.Stats.Queued == 0
	})
	s.Policies, s.Backends = &lb.Policies{}, all
	n.Sync(s)
	testbed.Check(t, <-served[0])
	testbed.Check(t, first.Close())
}

// TestPendingLeft: a client that does not send again has left, and its place goes to the next one, which does, and
// keeps its own.
func TestPendingLeft(t *testing.T) {
	t.Parallel()
	n, s, first := limited(t, false, lb.Policies{QueueTimeout: int64(time.Hour), MaxPendingConnections: 2})
	n.send(n.raw(n.Client), lab.At(n.Client.Addr4, 20000), s.Addresses[0].Addr, 2, 0)
	testbed.Eventually(t, "it waits", func() bool { return n.Stats().Holds.Held == 1 })
	served, _ := n.asks(&s, 1)
	if _, err := n.dial(&s, testbed.Patience); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a third: %v, want refused", err)
	}
	testbed.Eventually(t, "it has left", func() bool { return n.Stats().Holds.Left == 1 })
	again, _ := n.asks(&s, 1) // and there is a place
	if got := n.Stats().Holds; got.Left != 1 || got.Held != 2 || len(served[0]) > 0 {
		t.Errorf("%+v, want one that has left, and two that wait", got)
	}
	testbed.Check(t, first.Close())
	testbed.Check(t, <-served[0])
	s.Policies = &lb.Policies{}
	n.Sync(s)
	testbed.Check(t, <-again[0])
	if got := n.Stats(); got.Holds.Held != 0 || got.Chosen != 3 {
		t.Errorf("%+v, want three chosen", got)
	}
}

// TestPendingShare: one client cannot have all packets that may stay, and another one waits beside it.
func TestPendingShare(t *testing.T) {
	t.Parallel()
	n, s, _ := limited(t, false, lb.Policies{QueueTimeout: int64(time.Hour)})
	testbed.Check(t, n.Server.Close())
	n.Shares.Client = 1
	n.Node.DoT(t, n.Start)
	testbed.Eventually(t, "what is open is known", func() bool { return n.Stats().Flows.Known == 1 })
	const most = manyHeld / 100
	raw := n.raw(n.Client)
	for i := range uint16(2 * most) {
		n.send(raw, lab.At(n.Client.Addr4, 20000+i), s.Addresses[0].Addr, 2, 0)
	}
	testbed.Eventually(t, "each is judged", func() bool {
		got := n.Stats().Holds
		return got.All == most && got.Lacks.Client == most
	})
	go func() {
		if c, err := n.Pods[0].Dial(t.Context(), "tcp", s.Addresses[0].Addr.String()); err == nil {
			_ = c.Close()
		}
	}()
	testbed.Eventually(t, "another has its place", func() bool { return n.Stats().Holds.All == most+1 })
}
