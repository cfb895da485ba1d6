package udp

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// The least recently active flow makes room, and only that.
func TestMaxFlows(t *testing.T) {
	p := startProxy(t, 1, func(s *Server) { s.MaxFlows = 3 }, reflecting(t, "127.0.0.1:0").addr)
	clients := make([]*client, 5)
	flows := make([]string, 5)
	ask := func(i int) (fresh bool) {
		was := flows[i]
		flows[i] = clients[i].ask("q")
		return flows[i] != was
	}
	for i := range clients {
		clients[i] = dial(t, p.addr)
	}
	for _, step := range []struct {
		client int
		fresh  bool
	}{
		{0, true}, {1, true}, {2, true}, // full
		{0, false}, {2, false}, // now 1 is the oldest
		{3, true}, {0, false}, {2, false}, {3, false},
		{1, true}, // evicts 0
		{2, false}, {3, false}, {1, false},
		{0, true}, {4, true}, // evict 2 and 3
		{1, false},
	} {
		if fresh := ask(step.client); fresh != step.fresh {
			t.Fatalf("client %d: new flow %v, want %v", step.client, fresh, step.fresh)
		}
		if n := p.Stats().Active; n > 3 {
			t.Fatalf("%d flows, want 3 at most", n)
		}
	}
	if s := p.Stats(); s.Evicted != 4 || s.Created != 7 {
		t.Errorf("stats = %+v, want 4 of 7 flows evicted", s)
	}
}

// A flow that only waits for late answers makes room before any other.
func TestLeavingFlowsAreEvictedFirst(t *testing.T) {
	gone, stays := reflecting(t, "127.0.0.1:0"), reflecting(t, "127.0.0.1:0")
	p := startProxy(t, 1, func(s *Server) { s.MaxFlows = 2 }, gone.addr)
	a, b, c := dial(t, p.addr), dial(t, p.addr), dial(t, p.addr)
	p.setBackends(stays.addr)
	flow := b.ask("q")
	// Where b is takes no new flows now, but serves.
	table := service(1, gone.addr, stays.addr)
	table.Backends[1].Ready = false
	p.setServices(table)
	a.ask("q")
	p.setBackends(stays.addr)
	// a's flow is leaving, though it was active later than b's.
	eventually(t, "a's flow is leaving", func() bool { return p.Stats().Moved == 1 })
	c.ask("q")
	if again := b.ask("q"); again != flow {
		t.Errorf("b was flow %s, now %s", flow, again)
	}
	if s := p.Stats(); gone.asked.Load() != 1 || s.Moved != 1 || s.Evicted != 1 || s.Active != 2 {
		t.Errorf("stats = %+v, want 1 flow moved and evicted", s)
	}
}

// An answer counts as activity, so the flow that only receives is not evicted.
func TestAnswersKeepAFlow(t *testing.T) {
	b := listenUDP(t, "127.0.0.1:0")
	p := startProxy(t, 1, func(s *Server) { s.MaxFlows = 2 }, b.addr)
	from := make([]netip.AddrPort, 3)
	clients := make([]*client, 3)
	for i := range clients {
		clients[i] = dial(t, p.addr)
		if i == 2 { // the first has an answer later than the second's question
			b.answer(t, "a", from[0])
			clients[0].receive()
		}
		clients[i].send("q")
		var err error
		if _, from[i], err = b.ReadFromUDPAddrPort(make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
	}
	b.answer(t, "still there", from[0])
	if a := clients[0].receive(); a != "still there" {
		t.Errorf("answer = %q", a)
	}
}

// One descriptor for all flows of a loop: each client is served at the cost of
// the one before, in whichever frontend that is.
func TestBudget(t *testing.T) {
	budget := &eventloop.Budget{Limit: 1}
	p := startProxy(t, 1, func(s *Server) { s.Descriptors = budget }, echo(t, "127.0.0.1:0").addr)
	second := p.second(service(2, naming(t, "two").addr))
	a, b, c := dial(t, p.addr), dial(t, p.addr), dial(t, second)
	for range 5 {
		for _, x := range []*client{a, b, c} {
			x.ask("q")
			if n := budget.Used(); n != 1 {
				t.Fatalf("%d descriptors in use, want 1", n)
			}
		}
	}
	if s := p.Stats(); s.Evicted != 14 || s.Active != 1 || s.NoDescriptor != 0 {
		t.Errorf("stats = %+v, want 14 flows evicted", s)
	}
	// Others have it all: there is nothing to evict.
	p.Unlisten(frontend(2, false))
	if !budget.Take(1) {
		t.Fatal("Unlisten has not returned the descriptor")
	}
	a.send("q")
	eventually(t, "a datagram is dropped", func() bool { return p.Stats().NoDescriptor == 1 })
	budget.Give(1)
	if got := a.ask("again"); got != "again" {
		t.Errorf("answer = %q", got)
	}
	p.Close()
	if n := budget.Used(); n != 0 {
		t.Errorf("%d descriptors in use after Close", n)
	}
}

// Traffic in either direction keeps a flow alive.
func TestActivityKeepsAFlow(t *testing.T) {
	for name, one := range map[string]traffic{
		"both": {true, true}, "questions only": {true, false}, "answers only": {false, true},
	} {
		for attempt := 1; ; attempt++ {
			pause, err := one.keepsAFlow(t)
			if err == nil {
				break
			}
			// A flow may end while a busy machine lets the test or the loops stand still.
			if pause < keptIdle/2 || attempt == 5 {
				t.Fatalf("%s: %v, with nothing sent for %v at most", name, err, pause)
			}
		}
	}
}

// traffic says what is sent on a flow after its first question.
type traffic struct{ question, answer bool }

// keptIdle is the idle timeout of the flows that traffic keeps.
const keptIdle = 300 * time.Millisecond

// keepsAFlow sends for three times the idle timeout and wants one flow all the time. It
// also returns the longest time for which the flow may have seen nothing.
func (one traffic) keepsAFlow(t *testing.T) (pause time.Duration, err error) {
	b := listenUDP(t, "127.0.0.1:0")
	p := startProxy(t, 1, func(s *Server) { s.IdleTimeout = keptIdle }, b.addr)
	c := dial(t, p.addr)
	last := time.Now()
	c.send("q")
	from := b.question(t)
	for start := time.Now(); time.Since(start) < 3*keptIdle; {
		sent := time.Now()
		if one.question {
			c.send("q")
			again := b.question(t)
			pause = max(pause, time.Since(last))
			if again != from {
				return pause, errors.New("a new flow while the old one was active")
			}
		}
		if one.answer {
			b.answer(t, "a", from)
			_ = c.SetReadDeadline(time.Now().Add(2 * keptIdle))
			_, err := c.Read(c.buf)
			pause = max(pause, time.Since(last))
			if err != nil {
				return pause, fmt.Errorf("no answer: %w", err)
			}
		}
		last = sent
	}
	p.idle()
	if s := p.Stats(); s.Created != 1 || s.Expired != 1 {
		err = fmt.Errorf("stats = %+v, want one flow", s)
	}
	return pause, err
}

// Questions around the moment of expiry: every one arrives. (An answer may come
// later than the idle timeout allows, on a busy machine.)
func TestNoQuestionIsLostAtExpiry(t *testing.T) {
	const idle, clients, questions = 4 * time.Duration(eventloop.Tick), 20, 40
	b := echo(t, "127.0.0.1:0")
	p := startProxy(t, 2, func(s *Server) { s.IdleTimeout = idle }, b.addr)
	var all sync.WaitGroup
	for range clients {
		c := dial(t, p.addr)
		all.Go(func() {
			for range questions {
				if _, err := c.Write([]byte("q")); err != nil {
					t.Error(err)
				}
				// The time that passes is what is tested.
				time.Sleep(idle - idle/4 + rand.N(idle/2))
			}
		})
	}
	all.Wait()
	eventually(t, "all questions have arrived", func() bool { return b.asked.Load() == clients*questions })
	if s := p.Stats(); s.Expired < clients || s.DatagramsIn != clients*questions {
		t.Errorf("stats = %+v, want flows expired and %d questions", s, clients*questions)
	}
}

// Windows of datagrams at a moderate load: what is sent comes back, all of it.
func TestNothingIsLostUnderLoad(t *testing.T) {
	testbed.Native(t)
	const clients, window = 20, 16
	rounds := 50
	if wine { // each datagram is several requests to its server
		rounds = 10
	}
	for _, size := range []int{64, 1200} {
		p := startProxy(t, 2, nil, echo(t, "127.0.0.1:0").addr, echo(t, "127.0.0.1:0").addr)
		var all sync.WaitGroup
		for range clients {
			c := dial(t, p.addr)
			all.Go(func() {
				q := make([]byte, size)
				for range rounds {
					for range window {
						if _, err := c.Write(q); err != nil {
							t.Error(err)
							return
						}
					}
					for got := range window {
						_ = c.SetReadDeadline(time.Now().Add(patience))
						if n, err := c.Read(c.buf); err != nil || n != size {
							t.Errorf("%d of %d came back; %d bytes, %v", got, window, n, err)
							return
						}
					}
				}
			})
		}
		all.Wait()
		sent := uint64(clients * window * rounds)
		eventually(t, "the datagrams of both ways are counted", func() bool {
			s := p.Stats()
			return s.DatagramsIn == sent && s.DatagramsOut == sent && s.BytesOut == sent*uint64(size)
		})
	}
}
