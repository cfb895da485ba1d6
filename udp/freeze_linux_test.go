package udp

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/look"
	"github.com/sluice-lb/sluice/lb"
)

// dup is a descriptor of another process.
func dup(t *testing.T, fd int) int {
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Error(err)
	}
	return n
}

// moveTo moves everything from a Server to a new one with so many loops, as to another
// process: the old one ends without a word.
func (p *proxy) moveTo(loops int) (*proxy, []Frozen) {
	p.t.Helper()
	resume, err := p.Loops.Halt()
	if err != nil {
		p.t.Fatal(err)
	}
	listening := p.Listening()
	for i := range listening {
		l := &listening[i]
		l.FDs = slices.Clone(l.FDs)
		for j := range l.FDs {
			l.FDs[j] = dup(p.t, l.FDs[j])
		}
	}
	var flows []Frozen
	if err := p.Freeze(func(f *Frozen) error {
		flows = append(flows, *f)
		flows[len(flows)-1].FD = dup(p.t, f.FD)
		return nil
	}); err != nil {
		p.t.Fatal(err)
	}
	memories, stats := p.LB.Counters().All(), p.Stats()
	for _, sh := range p.shards {
		for f := sh.ages.first; f != nil; f = f.links[byAge].next {
			_ = sh.loop.Detach(f.fd)
		}
	}
	for _, group := range p.listeners {
		for _, ln := range group {
			_ = ln.shard.loop.Detach(ln.fd)
		}
	}
	resume()
	p.Close()

	next := &proxy{t: p.t, front: p.front, addr: p.addr}
	next.Server = newServer(p.t, loops, func(s *Server) {
		s.IdleTimeout, s.MaxFlows, s.Log = p.IdleTimeout, p.MaxFlows, p.Log
	})
	next.LB.Update(p.LB.Table())
	next.LB.Memory().Remember(memories)
	p.LB.Memory().Conversations(math.MinInt64, next.LB.Memory().RememberConversations)
	var thawed atomic.Int64
	if err := next.Adopt(listening, flows, func() { thawed.Add(1) }); err != nil {
		p.t.Fatal(err)
	}
	if thawed.Load() != int64(len(flows)) {
		p.t.Errorf("%d of %d flows thawed", thawed.Load(), len(flows))
	}
	next.Restore(stats)
	return next, flows
}

// TestMoveUnderLoad: clients ask on through a chain of Servers, with more and fewer
// loops; every datagram is answered, by the flow that the client had all along.
func TestMoveUnderLoad(t *testing.T) {
	for _, ipv6 := range []bool{false, true} {
		t.Run(fmt.Sprintf("IPv6 %v", ipv6), func(t *testing.T) {
			const clients, moves = 40, 9
			at := "127.0.0.1:0"
			if ipv6 {
				at = "[::1]:0"
			}
			p := startProxy(t, 2, nil, reflecting(t, at).addr, reflecting(t, at).addr, reflecting(t, at).addr)
			stop := make(chan struct{})
			var wg sync.WaitGroup
			var asked atomic.Int64
			for range clients {
				c := dial(t, p.addr)
				first := c.ask("?")
				wg.Go(func() {
					for {
						select {
						case <-stop:
							return
						default:
						}
						c.send("?")
						_ = c.SetReadDeadline(time.Now().Add(patience))
						n, err := c.Read(c.buf)
						if got := string(c.buf[:n]); err != nil || got != first {
							t.Errorf("an answer from flow %q, %v; want %q", got, err, first)
							return
						}
						asked.Add(1)
					}
				})
			}
			at1 := p
			for i := range moves {
				var flows []Frozen
				if at1, flows = at1.moveTo(1 + i%3); len(flows) != clients {
					t.Errorf("%d flows moved, want %d", len(flows), clients)
				}
				time.Sleep(10 * time.Millisecond) // the load between two moves
			}
			close(stop)
			wg.Wait()
			t.Logf("%d questions during %d moves", asked.Load(), moves)
			// An answer is counted after it has been sent.
			eventually(t, fmt.Sprintf("%d flows and %d answers are counted", clients, asked.Load()+clients), func() bool {
				s := at1.Stats()
				return s.Created == clients && s.DatagramsOut == uint64(asked.Load()+clients)
			})
			if b := at1.LB.Counters().All()[0]; b.InFlight != clients || b.Picks != clients {
				t.Errorf("balancer %+v, want %d picks, all in flight", b, clients)
			}
		})
	}
}

// TestMoveLeavingFlow: a flow that waits for the last answers of a backend which is gone
// does so in the next Server, and its client's next datagram goes elsewhere.
func TestMoveLeavingFlow(t *testing.T) {
	late := make(chan struct{})
	slow := listenUDP(t, "127.0.0.1:0")
	var answered sync.WaitGroup
	answered.Go(func() {
		buf := make([]byte, 100)
		n, from, err := slow.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		<-late
		_, _ = slow.WriteToUDPAddrPort(buf[:n], from)
	})
	p := startProxy(t, 2, nil, slow.addr)
	c := dial(t, p.addr)
	c.send("late")
	eventually(t, "the question has gone out", func() bool { return p.Stats().DatagramsIn == 1 })
	p.setBackends(naming(t, "new").addr)
	eventually(t, "the flow is leaving", func() bool { return p.Stats().Moved == 1 })
	next, flows := p.moveTo(1)
	if len(flows) != 1 || flows[0].Leaving <= 0 || flows[0].Addr.IsValid() {
		t.Errorf("moved %+v, want one leaving flow", flows)
	}
	close(late)
	if got := c.receive(); got != "late" {
		t.Errorf("the answer of the backend that is gone is %q", got)
	}
	answered.Wait()
	if got := c.ask("?"); got != "new" {
		t.Errorf("the next answer is %q, want new", got)
	}
	eventually(t, "only the new flow is left", func() bool { return next.Stats().Active == 1 })
}

// TestMovedConversation: what is remembered of a client, and that it is known, crosses.
func TestMovedConversation(t *testing.T) {
	p := startProxy(t, 1, func(s *Server) { s.IdleTimeout, s.MaxFlows = 0, 1 }, seen(t)...)
	a, b := dial(t, p.addr), dial(t, p.addr)
	first := a.ask("?")
	for range 3 {
		b.ask("?")
	}
	next, flows := p.moveTo(1)
	if len(flows) != 1 || !flows[0].Known || flows[0].Followed != settling {
		t.Errorf("moved %+v, want one flow of a known client", flows)
	}
	onLoop(t, next.shards[0], func() {
		if f := next.shards[0].ages.first; f.assurance != known || f.followed != settling {
			t.Error("the client is not known any more")
		}
	})
	if got := a.ask("?"); got[0] != first[0] {
		t.Errorf("the client was at backend and port %s, and is at %s", first, got)
	}
	if n := next.Stats().Resumed; n != 1 {
		t.Errorf("%d flows resumed, want one", n)
	}
}

// TestMovedReason: why a flow has its backend, which is logged, crosses as often as it moves.
func TestMovedReason(t *testing.T) {
	logged := make(chan look.Ended, 3)
	p := startProxy(t, 1, func(s *Server) { s.Log = func(e *look.Ended) { logged <- *e } })
	s := service(1, naming(t, "a").addr)
	s.Policies = &lb.Policies{AccessLog: "all"}
	p.setServices(s)
	dial(t, p.addr).ask("?")
	for range 2 {
		p, _ = p.moveTo(1) // one that is closed here, and not in another process, logs it, too
	}
	p.Unlisten(p.front)
	for i := range 3 {
		if e := <-logged; e.Why.String() != "rr" || e.In == 0 {
			t.Errorf("server %d logs %+v", i, e)
		}
	}
}

// TestMovedFlowExpires: the time that a flow was idle before counts.
func TestMovedFlowExpires(t *testing.T) {
	p := startProxy(t, 1, func(s *Server) { s.IdleTimeout = 300 * time.Millisecond }, naming(t, "a").addr)
	c := dial(t, p.addr)
	c.ask("?")
	next, flows := p.moveTo(2)
	if len(flows) != 1 {
		t.Fatalf("%d flows moved, want 1", len(flows))
	}
	next.idle()
	if s := next.Stats(); s.Expired != 1 || s.Created != 1 {
		t.Errorf("stats %+v, want one flow created and expired", s)
	}
}
