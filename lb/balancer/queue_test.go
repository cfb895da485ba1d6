package balancer

import (
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
)

// limitedTo returns a service at front whose backends have these numbers, and so many connections each at most.
func limitedTo(limit int32, backends ...int) lb.Service {
	s := echo(backends...)
	s.Policies = &lb.Policies{MaxEndpointConnections: limit}
	return s
}

// asking is a client that waits, or has a choice.
type asking struct {
	Waiter
	flow   Flow
	choice Choice
	woken  int
}

func newAsking() *asking {
	a := &asking{flow: Flow{Frontend: lb.Frontend{Protocol: lb.TCP, Addr: front}, Client: client}}
	a.Wake = func() { a.woken++ }
	return a
}

// ask asks for a backend, or waits for one.
func (a *asking) ask(t *testing.T, b *Balancer, now int64) (waits bool) {
	t.Helper()
	var err error
	if a.choice, err = b.Pick(a.flow); err == nil {
		return false
	}
	if err != ErrFull {
		t.Fatalf("pick: %v", err)
	}
	if wait, err := b.Queues().Join(&a.Waiter, &a.flow, now); err != nil || wait <= 0 || wait > queueTime {
		t.Fatalf("queue: %v, %v", wait, err)
	}
	return true
}

// take takes the turn of a client that was woken.
func (a *asking) take(t *testing.T) {
	t.Helper()
	if a.woken != 1 || !a.Served() {
		t.Fatalf("the client was woken %d times, served: %v", a.woken, a.Served())
	}
	a.woken, a.choice = 0, a.Turn()
}

// TestQueueOrder: a place that is given back is that of the client that came first, at any backend, and none that comes
// later is before it.
func TestQueueOrder(t *testing.T) {
	b := balancing(t, limitedTo(2, 1, 2))
	var first [4]*asking
	for i := range first {
		if first[i] = newAsking(); first[i].ask(t, b, int64(i)) {
			t.Fatalf("connection %d of 4 waits", i)
		}
	}
	for _, k := range b.Counters().All()[0].Backends {
		if k.InFlight != 2 {
			t.Errorf("backend %v has %d connections, want 2", k.Addr, k.InFlight)
		}
	}
	var later [6]*asking
	for i := range later {
		if later[i] = newAsking(); !later[i].ask(t, b, int64(10+i)) {
			t.Fatalf("client %d does not wait", i)
		}
	}
	if n := b.Counters().All()[0].Queued; n != 6 {
		t.Errorf("%d wait, want 6", n)
	}
	later[1].Leave() // a client that leaves is passed over
	for i, next := range []int{0, 2, 3, 4} {
		place := first[i].choice.Backend()
		first[i].choice.Done(nil)
		if _, err := b.Pick(later[next].flow); err != ErrFull {
			t.Fatalf("a client out of turn gets %v", err)
		}
		later[next].take(t)
		if got := later[next].choice.Backend(); got != place {
			t.Errorf("client %d gets %v, want the place at %v", next, got, place)
		}
	}
	if later[5].woken != 0 || b.Counters().All()[0].Queued != 1 {
		t.Errorf("the last was woken, or %d wait", b.Counters().All()[0].Queued)
	}
	later[0].choice.Done(nil)
	later[5].Leave() // its turn has come, and is given back
	for i := range 2 {
		if a := newAsking(); a.ask(t, b, 20) != (i == 1) {
			t.Errorf("client %d after all: waits %v", i, i != 1)
		}
	}
}

// TestQueueServedByChanges: those that wait are served when there are more backends, a higher limit or none, and are
// told when there is no backend, or no service, any more.
func TestQueueServedByChanges(t *testing.T) {
	terminated := limitedTo(1, 1)
	terminated.Backends[0].Ready = false
	for name, tt := range map[string]struct {
		to    []lb.Service
		valid []bool // of those that are served
	}{
		"another backend": {[]lb.Service{limitedTo(1, 1, 2)}, []bool{true}},
		"a higher limit":  {[]lb.Service{limitedTo(3, 1)}, []bool{true, true}},
		"no limit":        {[]lb.Service{echo(1)}, []bool{false, false, false}}, // a Pick finds one
		"not ready":       {[]lb.Service{terminated}, []bool{false, false, false}},
		"no service":      {nil, []bool{false, false, false}},
	} {
		t.Run(name, func(t *testing.T) {
			b := balancing(t, limitedTo(1, 1))
			mustPick(t, b, Flow{})
			var all [3]*asking
			for i := range all {
				all[i] = newAsking()
				all[i].ask(t, b, 0)
			}
			b.Update(mustTable(t, tt.to))
			for i, a := range all {
				if i >= len(tt.valid) {
					if a.woken != 0 {
						t.Errorf("client %d was woken", i)
					}
					continue
				}
				if a.take(t); a.choice.Valid() != tt.valid[i] {
					t.Errorf("client %d: a choice is there: %v", i, a.choice.Valid())
				}
			}
		})
	}
}

// TestQueueBound: no more clients wait than may, which is counted.
func TestQueueBound(t *testing.T) {
	s := limitedTo(1, 1)
	s.Policies.MaxPendingConnections, s.Policies.QueueTimeout = 1, 7
	b := balancing(t, s)
	mustPick(t, b, Flow{})
	first, second := newAsking(), newAsking()
	if wait, err := b.Queues().Join(&first.Waiter, &first.flow, 0); err != nil || wait != 7 {
		t.Errorf("queue: %d, %v", wait, err)
	}
	if _, err := b.Queues().Join(&second.Waiter, &second.flow, 0); err != ErrQueueFull {
		t.Errorf("the second waits: %v", err)
	}
	first.TimedOut()
	first.Leave()
	if n := b.Counters().All()[0]; n.Limited != 2 || n.Queued != 0 {
		t.Errorf("%d were refused, %d wait", n.Limited, n.Queued)
	}
	s.Policies = &lb.Policies{MaxEndpointConnections: 1, MaxPendingConnections: -1}
	b.Update(mustTable(t, []lb.Service{s}))
	if _, err := b.Queues().Join(&second.Waiter, &second.flow, 0); err != ErrQueueFull {
		t.Errorf("a client waits where none may: %v", err)
	}
}

// TestLimitPassesOver: a client with affinity whose backend has no room gets another and stays there; one that has
// failed at the only backend with room waits for another, and one that has failed at all gets any.
func TestLimitPassesOver(t *testing.T) {
	b := balancing(t, sticky(limitedTo(1, 1, 2), 1e9))
	one := mustPick(t, b, Flow{Client: client})
	two := mustPick(t, b, Flow{Client: client})
	if one.Backend() == two.Backend() {
		t.Error("both have one place")
	}
	one.Done(nil)
	two.Done(nil)
	if again := mustPick(t, b, Flow{Client: client}); again.Backend() != two.Backend() {
		t.Error("the client does not stay where it was last")
	}
	var tried Tried
	tried.Add(one)
	if _, err := b.Pick(Flow{Frontend: lb.Frontend{Protocol: lb.TCP, Addr: front}, Tried: &tried}); err != ErrFull {
		t.Errorf("one that has failed at the other backend gets %v", err)
	}
	tried.Add(two)
	if c := mustPick(t, b, Flow{Tried: &tried}); c.Backend() != one.Backend() {
		t.Errorf("one that has failed at both gets %v", c.Backend())
	}
}

// TestQueueOfFailed: clients that have failed at a backend wait for another, and do not keep others from that one. They
// keep their places, and their time, through as many attempts as they make.
func TestQueueOfFailed(t *testing.T) {
	b := balancing(t, limitedTo(1, 1, 2))
	good := mustPick(t, b, Flow{})
	bad := mustPick(t, b, Flow{})
	if good.Backend() != address(1) {
		good, bad = bad, good
	}
	failed, fresh := newAsking(), newAsking()
	failed.ask(t, b, 1)
	fresh.ask(t, b, 2)
	bad.Done(nil)
	failed.take(t)
	failed.flow.Tried = new(Tried)
	failed.flow.Tried.Add(failed.choice)
	failed.choice.Done(nil) // and fresh has the place
	fresh.take(t)
	if _, err := b.Pick(failed.flow); err != ErrFull {
		t.Fatal(err)
	}
	if wait, err := b.Queues().Join(&failed.Waiter, &failed.flow, 11); err != nil || wait != queueTime-10 {
		t.Errorf("it waits again for %d, %v; want what is left of %d", wait, err, queueTime)
	}
	fresh.choice.Done(nil)
	if failed.woken != 0 {
		t.Error("it is to try again where it has failed")
	}
	later := newAsking()
	if later.ask(t, b, 12) {
		t.Error("another client waits, and there is room where the first has failed")
	}
	last := newAsking()
	last.ask(t, b, 13)
	good.Done(nil)
	if failed.take(t); failed.choice.Backend() != address(1) || last.woken != 0 {
		t.Errorf("it gets %v, and the last was woken %d times", failed.choice.Backend(), last.woken)
	}
	failed.choice.Done(nil)
	last.take(t)
}

// TestQueueBehindFailed: a place is given to the first client that has not failed there, though one that came before it
// and waits for another backend has. A client that comes later does not get it.
func TestQueueBehindFailed(t *testing.T) {
	b := balancing(t, limitedTo(1, 1, 2))
	one, two := mustPick(t, b, Flow{}), mustPick(t, b, Flow{})
	wait := func(failedAt Choice, now int64) *asking {
		a := newAsking()
		a.flow.Tried = new(Tried)
		a.flow.Tried.Add(failedAt)
		if !a.ask(t, b, now) {
			t.Fatal("a client does not wait")
		}
		return a
	}
	first, second, third := wait(one, 1), wait(two, 2), wait(two, 3)
	at := one.Backend()
	one.Done(nil)
	if second.take(t); second.choice.Backend() != at || first.woken+third.woken != 0 {
		t.Errorf("the second gets %v, others were woken %d times", second.choice.Backend(), first.woken+third.woken)
	}
	later := newAsking()
	if !later.ask(t, b, 4) {
		t.Error("one that comes later gets a place")
	}
	b.Update(mustTable(t, []lb.Service{limitedTo(2, 1, 2)})) // a place more at each
	first.take(t)
	if third.take(t); first.choice.Backend() == at || third.choice.Backend() != at || later.woken != 0 {
		t.Errorf("with room at both the first gets %v, the third %v", first.choice.Backend(), third.choice.Backend())
	}
}

// TestQueueAfterHold: the time in the queue is that in the queue: a client that was held meanwhile, while there was no
// backend, begins anew in its old place.
func TestQueueAfterHold(t *testing.T) {
	with := func(backends ...int) lb.Service {
		s := limitedTo(1, backends...)
		s.Policies.Hold, s.Policies.QueueTimeout = 60*second, 5*second
		return s
	}
	b := balancing(t, with(1))
	mustPick(t, b, Flow{})
	a, later := newAsking(), newAsking()
	a.ask(t, b, 1*second)
	b.Update(mustTable(t, []lb.Service{with()}))
	if a.take(t); a.choice.Valid() {
		t.Fatal("there is no backend")
	}
	held, _, _ := b.Queues().Hold(&a.flow, 2*second)
	b.Update(mustTable(t, []lb.Service{with(2)}))
	held.End()
	mustPick(t, b, Flow{})
	later.ask(t, b, 19*second)
	if wait, err := b.Queues().Join(&a.Waiter, &a.flow, 20*second); err != nil || wait != 5*second {
		t.Errorf("after it was held it may wait for %d ms, %v", wait/1e6, err)
	}
	b.Update(mustTable(t, []lb.Service{with(2, 3)}))
	if a.take(t); !a.choice.Valid() || later.woken != 0 {
		t.Error("it has lost its place")
	}
}

// TestQueueOfMovedFrontend: a client whose frontend is another service's, or a renamed one's, by now is to ask again,
// and keeps none of those waiting that came after it.
func TestQueueOfMovedFrontend(t *testing.T) {
	at := func(name string, backend int, addrs ...int) lb.Service {
		s := limitedTo(1, backend)
		s.ID.Name, s.Addresses = name, nil
		for _, a := range addrs {
			s.Addresses = append(s.Addresses, lb.Address{Addr: address(a)})
		}
		return s
	}
	asks := func(a int) *asking {
		one := newAsking()
		one.flow.Frontend.Addr = address(a)
		return one
	}
	b := balancing(t, at("a", 1, 901, 902), at("b", 2, 903))
	ofA := mustPick(t, b, Flow{Frontend: lb.Frontend{Protocol: lb.TCP, Addr: address(901)}})
	mustPick(t, b, Flow{Frontend: lb.Frontend{Protocol: lb.TCP, Addr: address(903)}})
	moved, stays := asks(902), asks(901)
	moved.ask(t, b, 1)
	stays.ask(t, b, 2)
	b.Update(mustTable(t, []lb.Service{at("a", 1, 901), at("b", 2, 903, 902)}))
	if moved.take(t); moved.choice.Valid() || stays.woken != 0 {
		t.Error("the client whose frontend has moved has a choice, or another was woken")
	}
	if !moved.ask(t, b, 3) {
		t.Error("it does not wait at the other service")
	}
	ofA.Done(nil)
	stays.take(t)
	waits := asks(901)
	waits.ask(t, b, 4)
	renamed := at("a", 1, 901)
	renamed.ID.Port = "renamed"
	b.Update(mustTable(t, []lb.Service{renamed, at("b", 2, 903, 902)}))
	if waits.take(t); waits.choice.Valid() {
		t.Error("a client of the service before has a choice of it")
	}
}

// TestQueueOfPolicyLocal: who waits for this node's backends does not keep others waiting.
func TestQueueOfPolicyLocal(t *testing.T) {
	s := limitedTo(1, 1, 2)
	s.Backends[0].Local = true
	local := address(1000)
	s.Addresses = append(s.Addresses, lb.Address{Addr: local, Local: true})
	b := balancing(t, s)
	inside := newAsking()
	inside.flow.Frontend.Addr = local
	held := mustPick(t, b, Flow{Frontend: lb.Frontend{Protocol: lb.TCP, Addr: local}})
	if !inside.ask(t, b, 0) {
		t.Fatal("there are two places on this node")
	}
	outside, waits := newAsking(), newAsking()
	if outside.ask(t, b, 1) {
		t.Fatal("a client waits for a backend that has room")
	}
	if !waits.ask(t, b, 2) {
		t.Fatal("both backends have more than their limit")
	}
	outside.choice.Done(nil)
	if waits.take(t); inside.woken != 0 {
		t.Error("the client of this node was woken")
	}
	held.Done(nil)
	if inside.take(t); inside.choice.Backend() != address(1) {
		t.Errorf("it gets %v", inside.choice.Backend())
	}
}

// TestResumeQueue: clients that come from another Balancer wait in the order in which they came there, before all that
// come here, and none is served before every connection was resumed.
func TestResumeQueue(t *testing.T) {
	b := balancing(t, limitedTo(1, 1))
	later, second, first := newAsking(), newAsking(), newAsking()
	if !b.Queues().Rejoin(&second.Waiter, &second.flow, 2, 9) || !b.Queues().Rejoin(&first.Waiter, &first.flow, 1, 9) {
		t.Fatal("they do not wait")
	}
	if _, err := b.Pick(Flow{Frontend: lb.Frontend{Protocol: lb.TCP, Addr: front}}); err != ErrFull {
		t.Errorf("before it is known who has room: %v", err)
	}
	c := b.Memory().Resume(echo().ID, address(1))
	if !later.ask(t, b, 3) {
		t.Fatal("a client is out of turn")
	}
	c.Done(nil)
	if first.woken+second.woken+later.woken != 0 {
		t.Error("one is served before all were resumed")
	}
	b.Queues().Resumed()
	for _, a := range []*asking{first, second, later} {
		a.take(t)
		a.choice.Done(nil)
	}
	other := newAsking()
	other.flow.Frontend.Addr = address(77)
	if b.Queues().Rejoin(&other.Waiter, &other.flow, 1, 9) {
		t.Error("a client of no service waits")
	}
	b.Queues().Resuming() // and one whose service goes before all were resumed
	c = mustPickNone(t, b)
	gone := newAsking()
	b.Queues().Rejoin(&gone.Waiter, &gone.flow, 1, 9)
	b.Update(mustTable(t, nil))
	b.Queues().Resumed()
	gone.take(t)
	c.Done(nil)
}

// mustPickNone wants no choice.
func mustPickNone(t *testing.T, b *Balancer) Choice {
	t.Helper()
	c, err := b.Pick(Flow{Frontend: lb.Frontend{Protocol: lb.TCP, Addr: front}})
	if err != ErrFull {
		t.Errorf("pick: %v", err)
	}
	return c
}

// TestQueueModel: for random histories the queue does as a model with a list does.
func TestQueueModel(t *testing.T) {
	testbed.Native(t)
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 1))
		limit := 1 + r.IntN(3)
		backends := 1 + r.IntN(3)
		b := balancing(t, limitedTo(int32(limit), numbers(backends)...))
		var open, waiting []*asking
		for now := range int64(60) {
			switch r.IntN(4) {
			case 0, 1:
				a := newAsking()
				wants := !room(b, uint64(limit)) || len(waiting) > 0
				if a.ask(t, b, now) != wants {
					t.Fatalf("seed %d: a client waits: %v, beside %d with and %d without", seed, !wants, len(open),
						len(waiting))
				}
				if wants {
					waiting = append(waiting, a)
				} else {
					open = append(open, a)
				}
			case 2:
				if len(open) > 0 {
					i := r.IntN(len(open))
					open[i].choice.Done(nil)
					open = slices.Delete(open, i, i+1)
				}
			case 3:
				switch {
				case r.IntN(3) == 0 && len(waiting) > 0:
					i := r.IntN(len(waiting))
					waiting[i].Leave()
					waiting = slices.Delete(waiting, i, i+1)
				case r.IntN(8) == 0:
					limit, backends = 1+r.IntN(3), 1+r.IntN(3)
					b.Update(mustTable(t, []lb.Service{limitedTo(int32(limit), numbers(backends)...)}))
				}
			}
			for len(waiting) > 0 && waiting[0].woken > 0 {
				waiting[0].take(t)
				open, waiting = append(open, waiting[0]), waiting[1:]
			}
			if len(waiting) > 0 && room(b, uint64(limit)) {
				t.Fatalf("seed %d: %d wait, and there is room", seed, len(waiting))
			}
			for _, a := range waiting {
				if a.woken != 0 {
					t.Fatalf("seed %d: a client is served before one that came first", seed)
				}
			}
		}
	}
}

// room reports whether a backend of the table may have one more connection.
func room(b *Balancer, limit uint64) bool {
	return slices.ContainsFunc(b.Counters().All()[0].Backends, func(k BackendStats) bool {
		return k.Eligible &&
			k.InFlight < limit
	})
}

// TestQueueBoundByMany: goroutines that come together do not exceed the bound.
func TestQueueBoundByMany(t *testing.T) {
	const most, many = 3, 16
	for range 200 {
		s := limitedTo(1, 1)
		s.Policies.MaxPendingConnections = most
		b := balancing(t, s)
		mustPick(t, b, Flow{})
		var wait atomic.Int32
		var all sync.WaitGroup
		begin := make(chan struct{})
		for range many {
			a := newAsking()
			all.Go(func() {
				<-begin
				if _, err := b.Queues().Join(&a.Waiter, &a.flow, 1); err == nil {
					wait.Add(1)
				}
			})
		}
		close(begin)
		if all.Wait(); wait.Load() != most || b.Counters().All()[0].Queued != most {
			t.Fatalf("%d wait, want %d", wait.Load(), most)
		}
	}
}

// TestQueueByMany: goroutines that come and go never have more than the limit at a backend, and none waits for ever.
func TestQueueByMany(t *testing.T) {
	const each, limit = 3000, 3
	b := balancing(t, limitedTo(limit, 1, 2))
	var inUse [2]atomic.Int32
	var all sync.WaitGroup
	for g := range 16 {
		all.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 2))
			turn := make(chan struct{}, 1)
			w := Waiter{Wake: func() { turn <- struct{}{} }}
			flow := Flow{Frontend: lb.Frontend{Protocol: lb.TCP, Addr: front}, Client: client}
			for i := range each {
				c, err := b.Pick(flow)
				if err == ErrFull {
					if _, err = b.Queues().Join(&w, &flow, int64(i)); err != nil {
						t.Errorf("queue: %v", err)
						return
					}
					if r.IntN(4) == 0 {
						w.Leave()
						select {
						case <-turn:
						default:
						}
						continue
					}
					<-turn
					c = w.Turn()
				}
				at := &inUse[0]
				if c.Backend() == address(2) {
					at = &inUse[1]
				}
				if n := at.Add(1); n > limit {
					t.Errorf("%d connections at %v", n, c.Backend())
				}
				at.Add(-1)
				c.Done(nil)
			}
		})
	}
	all.Wait()
	if n := b.Counters().All()[0]; n.InFlight != 0 || n.Queued != 0 {
		t.Errorf("%d in flight, %d wait", n.InFlight, n.Queued)
	}
}
