package tcp

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/lb"
)

// counting echoes, and counts the connections that it has at the same time.
func counting(t *testing.T) (b lb.Backend, most *atomic.Int32) {
	t.Helper()
	var now atomic.Int32
	most = new(atomic.Int32)
	addr := backend(t, func(c *net.TCPConn) {
		n := now.Add(1)
		for was := most.Load(); n > was && !most.CompareAndSwap(was, n); was = most.Load() {
		}
		_, _ = io.Copy(c, struct{ io.Reader }{c})
		now.Add(-1) // before the client can see the end
		_ = c.CloseWrite()
	})
	return lb.Backend{Addr: addr, Ready: true, Serving: true}, most
}

// ask sends a byte, wants it back, and ends the connection in peace.
func ask(t *testing.T, c *net.TCPConn, b byte) {
	t.Helper()
	_, err := c.Write([]byte{b})
	report(t, err)
	got := make([]byte, 1)
	if _, err := io.ReadFull(c, got); err != nil || got[0] != b {
		t.Errorf("client %d got %d, %v", b, got[0], err)
	}
	report(t, c.CloseWrite())
	_, err = io.Copy(io.Discard, c)
	report(t, err)
}

// TestMaxEndpointConnections: of many clients no endpoint ever has more than its limit, and all are served.
func TestMaxEndpointConnections(t *testing.T) {
	eachWay(t, func(t *testing.T) {
		const limit, clients, each = 3, 40, 5
		p := startProxy(t, nil)
		one, most1 := counting(t)
		two, most2 := counting(t)
		p.holding(lb.Policies{MaxEndpointConnections: limit, QueueTimeout: int64(time.Hour)}, one, two)
		var all sync.WaitGroup
		for i := range clients {
			all.Go(func() {
				for range each {
					c, err := net.DialTimeout("tcp", p.addr.String(), patience)
					if err != nil {
						t.Errorf("dial: %v", err)
						return
					}
					report(t, c.SetDeadline(time.Now().Add(patience)))
					ask(t, c.(*net.TCPConn), byte(i))
					report(t, c.Close())
				}
			})
		}
		all.Wait()
		p.eventually("all have ended", func(s Stats) bool { return s.Active == 0 && s.Queued == 0 && s.Dialling == 0 })
		s := p.Stats()
		if most1.Load() > limit || most2.Load() > limit || s.Established != clients*each || s.Queues == 0 {
			t.Errorf("at most %d and %d connections, want %d; %+v", most1.Load(), most2.Load(), limit, s)
		}
	})
}

// queuing has a client that is served, and others that wait, each of which sends its number first and ends after the
// backend. The backend notes the numbers; it ends each connection after that, the first one when it is to.
func queuing(t *testing.T, clients int, policies lb.Policies) (p *proxy, order chan byte, end func()) {
	t.Helper()
	p = startProxy(t, nil)
	order = make(chan byte, clients)
	first := make(chan struct{})
	addr := backend(t, func(c *net.TCPConn) {
		b := make([]byte, 1)
		if _, err := io.ReadFull(c, b); err != nil {
			return
		}
		if order <- b[0]; b[0] == 0 {
			<-first
		}
	})
	p.holding(policies, lb.Backend{Addr: addr, Ready: true, Serving: true})
	for i := range clients {
		c := p.dial()
		_, err := c.Write([]byte{byte(i)})
		check(t, err)
		p.eventually("it has its place", func(s Stats) bool {
			return s.Established == 1 && s.Queued == int64(i) && s.Dialling == 0
		})
		go func() { // until the backend, or the cleanup of the test, ends the connection
			_, _ = io.Copy(io.Discard, c)
			_ = c.Close()
		}()
	}
	return p, order, sync.OnceFunc(func() { close(first) })
}

func expectOrder(t *testing.T, order chan byte, numbers ...byte) {
	t.Helper()
	for _, want := range numbers {
		select {
		case got := <-order:
			if got != want {
				t.Fatalf("client %d was served where %d came first", got, want)
			}
		case <-time.After(patience):
			t.Fatalf("client %d was not served", want)
		}
	}
}

// TestQueueFirstComeFirstServed: whatever loop they are on, those that came first are dialled for first.
func TestQueueFirstComeFirstServed(t *testing.T) {
	eachWay(t, func(t *testing.T) {
		_, order, end := queuing(t, 10, lb.Policies{MaxEndpointConnections: 1, QueueTimeout: int64(time.Hour)})
		defer end()
		expectOrder(t, order, 0)
		end()
		expectOrder(t, order, 1, 2, 3, 4, 5, 6, 7, 8, 9)
	})
}

// TestQueueMoves: those that wait keep their places at the next process, and what is left of their time.
func TestQueueMoves(t *testing.T) {
	policies := lb.Policies{MaxEndpointConnections: 1, QueueTimeout: int64(time.Hour)}
	p, order, end := queuing(t, 10, policies)
	defer end()
	expectOrder(t, order, 0)
	next := p.successor(2)
	next.LB.Update(p.LB.Table())
	m := p.moveTo(next)
	waited := 0
	for _, f := range m.conns {
		if f.Dial != nil && f.Dial.Queued != 0 && f.Dial.Left > 0 && f.Dial.Left <= time.Hour+time.Second {
			waited++
		}
	}
	if waited != 9 {
		t.Errorf("%d moved as ones that wait, want 9", waited)
	}
	end() // before it is known who has room
	next.LB.Queues().Resumed()
	expectOrder(t, order, 1, 2, 3, 4, 5, 6, 7, 8, 9)
	next.eventually("none is left", func(s Stats) bool { return s.Active == 0 && s.Queued == 0 })
}

// TestQueueChanges: those that wait are served when the limit ends, and the connection that was there goes on.
func TestQueueChanges(t *testing.T) {
	eachWay(t, func(t *testing.T) {
		p, order, end := queuing(t, 5, lb.Policies{MaxEndpointConnections: 1})
		defer end()
		expectOrder(t, order, 0)
		p.serve(p.LB.Table().At(0).Backends[0].Addr)
		p.eventually("all are served", func(s Stats) bool { return s.Established == 5 && s.Queued == 0 })
		if s := p.Stats(); s.BackendResets+s.ClientResets != 0 || s.Queues != 4 {
			t.Errorf("stats %+v", s)
		}
	})
}

// TestQueueEnds: a client is reset that finds the queue full, or has waited for long enough; one that leaves gives its
// place back.
func TestQueueEnds(t *testing.T) {
	eachWay(t, func(t *testing.T) {
		p := startProxy(t, nil)
		to, _ := counting(t)
		p.holding(lb.Policies{MaxEndpointConnections: 1, MaxPendingConnections: 1, QueueTimeout: int64(time.Hour)}, to)
		served := p.dial()
		p.eventually("one is served", func(s Stats) bool { return s.Established == 1 })
		waits := p.dial()
		p.eventually("one waits", func(s Stats) bool { return s.Queued == 1 })
		p.expectReset()
		check(t, waits.SetLinger(0))
		check(t, waits.Close())
		p.eventually("it has left", func(s Stats) bool { return s.Queued == 0 && s.Active == 1 })
		p.holding(lb.Policies{MaxEndpointConnections: 1, QueueTimeout: int64(30 * time.Millisecond)}, to)
		p.expectReset()
		p.holding(lb.Policies{MaxEndpointConnections: 1, MaxPendingConnections: -1}, to)
		p.expectReset()
		ask(t, served, 7)
		p.eventually("none is left", func(s Stats) bool { return s.Active == 0 })
		if s := p.Stats(); s.Queues != 2 || s.QueueFull != 2 || s.QueueTimedOut != 1 || s.Dials != 1 {
			t.Errorf("stats %+v", s)
		}
		if n := p.LB.Counters().All()[0]; n.Limited != 3 || n.Queued != 0 || n.InFlight != 0 {
			t.Errorf("%d are counted, want 3; %d wait; %d are in flight", n.Limited, n.Queued, n.InFlight)
		}
	})
}

// TestQueuedClientRetries: a client whose turn leads to an endpoint that refuses waits for another, and is served
// there.
func TestQueuedClientRetries(t *testing.T) {
	eachWay(t, func(t *testing.T) {
		p := startProxy(t, nil)
		to, _ := counting(t)
		policies := lb.Policies{MaxEndpointConnections: 1, QueueTimeout: int64(time.Hour), OutlierEjection: lb.Off}
		p.holding(policies, to)
		served := p.dial()
		p.eventually("one is served", func(s Stats) bool { return s.Established == 1 })
		var waiting []*net.TCPConn
		for i := range 4 {
			waiting = append(waiting, p.dial())
			p.eventually("it waits", func(s Stats) bool { return s.Queued == int64(i+1) })
		}
		p.holding(policies, to, lb.Backend{Addr: refusing(t), Ready: true, Serving: true})
		p.eventually("each has been refused once", func(s Stats) bool { return s.DialRefused == 4 && s.Queued == 4 })
		ask(t, served, 9)
		for i, c := range waiting {
			ask(t, c, byte(i))
		}
		p.eventually("none is left", func(s Stats) bool { return s.Active == 0 && s.Queued == 0 })
		if n := p.LB.Counters().All()[0]; n.InFlight != 0 || n.Queued != 0 || n.Limited != 0 {
			t.Errorf("%d are in flight, %d wait, %d were refused", n.InFlight, n.Queued, n.Limited)
		}
	})
}

// TestQueuedClientEnds: one that ends its stream while it waits gives its place back.
func TestQueuedClientEnds(t *testing.T) {
	p := startProxy(t, nil)
	to, _ := counting(t)
	policies := lb.Policies{MaxEndpointConnections: 1, QueueTimeout: int64(time.Hour), OutlierEjection: lb.Off}
	p.holding(policies, to)
	served := p.dial()
	p.eventually("one is served", func(s Stats) bool { return s.Established == 1 })
	leaves := p.dial()
	p.eventually("one waits", func(s Stats) bool { return s.Queued == 1 })
	check(t, leaves.CloseWrite())
	p.eventually("it has left", func(s Stats) bool { return s.Queued == 0 && s.QueueLeft == 1 && s.Active == 1 })
	ask(t, served, 1)
}

// TestConnectionLimits: clients beyond the limits of a Service, and of each client, are reset before a dial.
func TestConnectionLimits(t *testing.T) {
	for _, tt := range []struct {
		policies lb.Policies
		count    func(Stats) uint64
	}{
		{lb.Policies{MaxConnections: 2}, func(s Stats) uint64 { return s.OverConnections }},
		{lb.Policies{MaxClientConnections: 2}, func(s Stats) uint64 { return s.OverClientConnections }},
		{lb.Policies{MaxClientConnectionRate: 2}, func(s Stats) uint64 { return s.OverClientRate }},
	} {
		eachWay(t, func(t *testing.T) {
			p := startProxy(t, nil)
			to, _ := counting(t)
			p.holding(tt.policies, to)
			first, second := p.dial(), p.dial()
			p.eventually("both are served", func(s Stats) bool { return s.Established == 2 })
			p.expectReset()
			if n := tt.count(p.Stats()); n != 1 {
				t.Errorf("%d are counted, want 1", n)
			}
			ask(t, first, 1)
			ask(t, second, 2)
			p.eventually("both have ended", func(s Stats) bool { return s.Active == 0 })
			if tt.policies.MaxClientConnectionRate == 0 {
				ask(t, p.dial(), 3)
			}
		})
	}
}
