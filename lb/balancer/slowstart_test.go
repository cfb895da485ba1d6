package balancer

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
)

// part returns which part of so many picks at one time go to backend i, in thousandths.
func part(t *testing.T, b *Balancer, i int, now int64) int {
	t.Helper()
	const picks = 10000
	n := 0
	for range picks {
		c := mustPick(t, b, Flow{Now: now})
		if c.Backend() == address(i) {
			n++
		}
		c.Done(nil)
	}
	return n * 1000 / picks
}

// A backend that joins has a tenth of its turns at first, then as much as of the time has passed, and the others share
// what it does not take.
func TestSlowStart(t *testing.T) {
	testbed.Native(t)
	for _, scheduler := range []string{"rr", "lc", "random", "p2c", "ewma"} {
		b := &Balancer{Defaults: lb.Policies{SlowStart: 100 * second, Scheduler: scheduler}}
		b.Update(mustTable(t, []lb.Service{echo(0, 1, 2, 3)}))
		if got := part(t, b, 0, 0); got < 230 || got > 270 {
			t.Errorf("%s: at the start one of four has %d of 1000", scheduler, got)
		}
		b.Update(mustTable(t, []lb.Service{echo(0, 1, 2, 3, 4)}))
		now := 1000 * second
		for _, step := range []struct {
			age  int64
			want int
		}{{0, 20}, {5, 20}, {50, 100}, {75, 150}, {100, 200}, {1000, 200}} {
			off := 1
			if scheduler != "rr" && scheduler != "lc" {
				off = 10 + step.want/10
			}
			if got := part(t, b, 4, now+step.age*second); got < step.want-off || got > step.want+off {
				t.Errorf("%s: after %d s the new one has %d of 1000, want %d", scheduler, step.age, got, step.want)
			}
			if got, want := part(t, b, 1, now+step.age*second), (1000-step.want)/4; got < want-2*off || got > want+2*off {
				t.Errorf("%s: after %d s another one has %d of 1000, want %d", scheduler, step.age, got, want)
			}
		}
		if b.load().service(0).backends[4].starts() != nil {
			t.Errorf("%s: it starts for ever", scheduler)
		}
	}
}

// Backends that are all new, or that come with the Service, start at once; those that return start slowly.
func TestWhoStartsSlowly(t *testing.T) {
	b := &Balancer{Outlier: lb.DefaultOutlier}
	starting := func() (all []netip.AddrPort) {
		for _, k := range b.load().service(0).backends {
			if k.starts() != nil {
				all = append(all, k.addr)
			}
		}
		return all
	}
	expect := func(when string, want ...int) {
		t.Helper()
		var addrs []netip.AddrPort
		for _, i := range want {
			addrs = append(addrs, address(i))
		}
		if got := starting(); !slices.Equal(got, addrs) {
			t.Errorf("%s: %v start slowly, want %v", when, got, addrs)
		}
	}
	update := func(change func(*lb.Service), backends ...int) {
		s := echo(backends...)
		s.Policies = &lb.Policies{SlowStart: 10 * second}
		change(&s)
		b.Update(mustTable(t, []lb.Service{s}))
	}
	none := func(*lb.Service) {}
	update(none, 1, 2)
	expect("at the start")
	update(none, 3, 4)
	expect("all are new")
	update(none, 3, 4, 5)
	expect("one joins", 5)
	update(none, 3, 4, 5, 6)
	expect("another one joins", 5, 6)
	update(func(s *lb.Service) { s.Backends[1].Ready = false }, 3, 4, 5, 6)
	expect("one is not ready", 5, 6)
	update(none, 3, 4, 5, 6)
	expect("it is again", 4, 5, 6)
	update(func(s *lb.Service) { s.Policies = &lb.Policies{SlowStart: -1} }, 3, 4, 5, 6)
	expect("it is turned off")
	update(func(s *lb.Service) { s.Backends[2].Maintenance = true }, 3, 4, 5)
	update(none, 3, 4, 5)
	expect("maintenance is over", 5)
	update(func(s *lb.Service) { s.Policies = &lb.Policies{SlowStart: 0} }, 3, 4, 5)
	expect("the program has none")
	update(none, 3, 4, 5)
	failUntil(t, b, 5, 0, address(3))
	due, _ := b.Health().Trials(2*second, 1)
	if len(due) != 1 {
		t.Fatalf("%d trials, want one of the ejected", len(due))
	}
	due[0].Passed(2 * second)
	expect("an ejection is over", 3)
}

func TestSlowStartDoesNotAllocate(t *testing.T) {
	b := &Balancer{Defaults: lb.Policies{SlowStart: second}}
	b.Update(mustTable(t, []lb.Service{echo(1, 2)}))
	b.Update(mustTable(t, []lb.Service{echo(1, 2, 3)}))
	if n := testing.AllocsPerRun(1000, func() { mustPick(t, b, Flow{}).Done(nil) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
