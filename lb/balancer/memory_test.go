package balancer

import (
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/sluice-lb/sluice/lb"
)

// takeOver returns a balancer that goes on where b has stopped.
func takeOver(b *Balancer) *Balancer {
	next := &Balancer{Seed: b.Seed}
	next.Update(b.Table())
	next.Memory().Remember(b.Counters().All())
	b.Memory().Clients(0, next.Memory().RememberClients)
	return next
}

// TestTakeOverAtAnyPoint: two balancers that share every pick by turns choose as one
// alone, with retries, affinity, both policies and changes of the table in between.
func TestTakeOverAtAnyPoint(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	tables := make([]*lb.Table, 4)
	for i := range tables {
		plain := echo(numbers(7)[i:]...)
		plain.Addresses = append(plain.Addresses, lb.Address{Addr: netip.MustParseAddrPort("203.0.113.1:80"), Kind: lb.ExternalIP, Local: true})
		for j := range plain.Backends {
			plain.Backends[j].Local = j%2 == 0
			plain.Backends[j].Weight = uint16(i * j % 3)
		}
		plain.Policies = &lb.Policies{Scheduler: []string{"", "random", "lc", "maglev"}[i]}
		stick := sticky(echo(numbers(9)[i:]...), 1000)
		stick.ID.Name, stick.Addresses = "sticky", []lb.Address{{Addr: netip.MustParseAddrPort("10.0.0.2:80")}}
		tables[i] = mustTable(t, []lb.Service{plain, stick})
	}
	one := &Balancer{Seed: 7}
	other := &Balancer{Seed: 7}
	one.Update(tables[0])
	other.Update(tables[0])
	fronts := []string{"10.0.0.1:80", "10.0.0.2:80", "203.0.113.1:80"}
	for now := range int64(5000) {
		switch r.IntN(20) {
		case 0:
			table := tables[r.IntN(len(tables))]
			one.Update(table)
			other.Update(table)
		case 1:
			one.Counters().All() // drops what has drained, as taking over does
			other = takeOver(other)
		}
		var tried1, tried2 Tried
		f := Flow{Frontend: lb.Frontend{Protocol: lb.TCP, Addr: netip.MustParseAddrPort(fronts[r.IntN(3)])}, Client: netip.AddrFrom4([4]byte{192, 0, 2, byte(r.IntN(100))}), Now: now}
		for range 1 + r.IntN(3) {
			f.Tried = &tried1
			want := mustPick(t, one, f)
			f.Tried = &tried2
			got := mustPick(t, other, f)
			if got.Backend() != want.Backend() {
				t.Fatalf("pick at %d of %s: %s, want %s", now, f.Frontend, got.Backend(), want.Backend())
			}
			tried1.Add(want)
			tried2.Add(got)
			want.Done(nil)
			got.Done(nil)
		}
	}
	if was, is := one.Counters().All(), other.Counters().All(); !reflect.DeepEqual(was, is) {
		t.Errorf("the counters are\n%+v\nwant\n%+v", is, was)
	}
}

// TestResume: connections that are taken over are in flight where they were, at
// backends of the table, at those that have left it, and at no service at all.
func TestResume(t *testing.T) {
	old := new(Balancer)
	old.Update(mustTable(t, []lb.Service{echo(1, 2)}))
	a, b := mustPick(t, old, Flow{}), mustPick(t, old, Flow{})
	old.Update(mustTable(t, []lb.Service{echo(1)}))
	next := takeOver(old)
	a2, b2 := next.Memory().Resume(a.Service(), a.Backend()), next.Memory().Resume(b.Service(), b.Backend())
	if was, is := old.Counters().All(), next.Counters().All(); !reflect.DeepEqual(was, is) {
		t.Errorf("the counters are\n%+v\nwant\n%+v", is, was)
	}
	if a2.Live() != a.Live() || b2.Live() != b.Live() {
		t.Errorf("live %v and %v, want %v and %v", a2.Live(), b2.Live(), a.Live(), b.Live())
	}
	gone := next.Memory().Resume(lb.ID{Name: "gone", Protocol: lb.TCP}, address(3))
	if gone.Live() || gone.Backend() != address(3) || gone.Service().Name != "gone" {
		t.Errorf("a choice of a service that is not there: %v", gone)
	}
	next.Memory().Remember(old.Counters().All()) // again, with what came since: those in flight stay
	for _, c := range []Choice{a2, b2, gone} {
		c.Done(nil)
	}
	for _, s := range next.Counters().All() {
		if s.InFlight != 0 || s.Picks != 2 {
			t.Errorf("in the end %+v, want 2 picks and none in flight", s)
		}
	}
}

// TestRememberTwice: what has drained between two calls counts once.
func TestRememberTwice(t *testing.T) {
	old := new(Balancer)
	old.Update(mustTable(t, []lb.Service{echo(1, 2)}))
	a, b := mustPick(t, old, Flow{}), mustPick(t, old, Flow{})
	old.Update(mustTable(t, []lb.Service{echo(1)}))
	next := takeOver(old)
	a.Done(nil)
	b.Done(nil)
	next.Memory().Remember(old.Counters().All())
	if is := next.Counters().All()[0]; is.Picks != 2 || len(is.Backends) != 1 {
		t.Errorf("in the end %+v, want 2 picks and 1 backend", is)
	}
}

// TestResumeTried: what has failed before is not tried again afterwards.
func TestResumeTried(t *testing.T) {
	b := balancing(t, echo(1, 2, 3))
	var tried Tried
	for range 2 {
		tried.Add(mustPick(t, b, Flow{Tried: &tried}))
	}
	next := takeOver(b)
	again := next.Memory().ResumeTried(echo().ID, tried.Backends())
	if was, is := tried.Backends(), again.Backends(); !slices.Equal(was, is) {
		t.Errorf("tried %v, want %v", is, was)
	}
	if c := mustPick(t, next, Flow{Tried: &again}); again.has(c.backend) {
		t.Errorf("%s was chosen again", c.Backend())
	}
}

// TestServiceClients: one service's clients alone are told.
func TestServiceClients(t *testing.T) {
	one, other := sticky(echo(numbers(2)...), 1000), sticky(echo(numbers(2)...), 1000)
	other.ID.Name, other.Addresses = "other", []lb.Address{{Addr: netip.MustParseAddrPort("10.0.0.2:80")}}
	b := new(Balancer)
	b.Update(mustTable(t, []lb.Service{one, other}))
	want := []lb.Client{
		{Addr: netip.MustParseAddr("192.0.2.1"), Backend: one.Backends[1].Addr, LastUsed: 5},
		{Addr: netip.MustParseAddr("192.0.2.2"), Backend: one.Backends[0].Addr, LastUsed: 7},
	}
	b.Memory().RememberClients(one.ID, want)
	b.Memory().RememberClients(other.ID, want[:1])
	if have := b.Memory().ServiceClients(one.ID); !slices.Equal(have, want) {
		t.Errorf("clients %v, want %v", have, want)
	}
	if have := b.Memory().ServiceClients(lb.ID{Name: "none"}); have != nil {
		t.Errorf("a service that is not there has clients %v", have)
	}
}

// TestPaceIsTakenOver: what backends were measured at, and how far their slow start is, goes on: the next balancer
// picks as the one before would have.
func TestPaceIsTakenOver(t *testing.T) {
	for _, scheduler := range []string{"rr", "ewma"} {
		t.Run(scheduler, func(t *testing.T) {
			b := &Balancer{Defaults: lb.Policies{SlowStart: 100 * second, Scheduler: scheduler}}
			b.Update(mustTable(t, []lb.Service{echo(0, 1, 2, 3)}))
			b.Update(mustTable(t, []lb.Service{echo(0, 1, 2, 3, 4)}))
			now := 1000 * second
			use := func(b *Balancer, n int) (got []netip.AddrPort) {
				for range n {
					c := mustPick(t, b, Flow{Now: now})
					got = append(got, c.Backend())
					took := 2 * second / 1000
					if c.Backend() == address(0) {
						took = second
					}
					c.Took(took, now)
					c.Done(nil)
				}
				return got
			}
			use(b, 1000)
			now += 50 * second // the new one has half of its turns
			use(b, 1000)
			next := &Balancer{Defaults: lb.Policies{SlowStart: 100 * second, Scheduler: scheduler}}
			next.Update(b.Table())
			next.Memory().Remember(b.Counters().All())
			if was, is := b.Counters().All(), next.Counters().All(); !reflect.DeepEqual(was, is) {
				t.Errorf("%+v\nwant\n%+v", is, was)
			}
			if was, is := use(b, 1000), use(next, 1000); !slices.Equal(was, is) {
				t.Error("the next balancer picks others")
			}
			now += 60 * second
			if part(t, next, 4, now); next.Counters().All()[0].Backends[4].Pace.Starts {
				t.Error("it starts for ever")
			}
			next.Memory().Remember(b.Counters().All()) // with what has come since
			part(t, b, 4, now)
			next.Memory().Remember(b.Counters().All())
			if next.Counters().All()[0].Backends[4].Pace.Starts {
				t.Error("its start has ended in the process before")
			}
		})
	}
}
