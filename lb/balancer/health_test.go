package balancer

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/lb"
)

// serve makes n connections, of which those to a backend that resets end before the first byte.
func serve(t *testing.T, b *Balancer, n int, resets ...int) {
	t.Helper()
	for range n {
		c := mustPick(t, b, Flow{})
		c.Answered()
		bad := false
		for _, i := range resets {
			bad = bad || c.Backend() == address(i)
		}
		if bad {
			c.WasReset(errRefused, netip.Addr{}, 0)
			continue
		}
		c.Spoke()
		c.Done(nil)
	}
}

// A backend that accepts and resets is ejected like one that refuses; that it accepts is no success.
func TestResetsEject(t *testing.T) {
	b, events := ejecting(t, echo(1, 2, 3))
	serve(t, b, 15, 1)
	if len(*events) != 1 || (*events)[0].Backend != address(1) {
		t.Fatalf("%+v", *events)
	}
	b, events = ejecting(t, echo(1, 2, 3))
	serve(t, b, 300, 1, 2, 3)
	if s := b.Health().Stats(); len(*events) > 0 || s.Spared == 0 {
		t.Errorf("where all reset: %+v, %+v", s, *events)
	}
}

// Ends of streams without a byte, as where clients only send, are successes between resets.
func TestSilentStreamsEjectNone(t *testing.T) {
	b, events := ejecting(t, echo(1, 2))
	for range 50 {
		serve(t, b, 8, 1)
		serve(t, b, 2)
	}
	if len(*events) > 0 {
		t.Errorf("ejected after four resets in a row: %+v", *events)
	}
}

// Who returns without a trial is ejected again by its first failure.
func TestReturnOnProbation(t *testing.T) {
	s := echo(1, 2)
	s.Protocol = lb.UDP
	b, events := ejecting(t, s)
	ask := func(now int64) {
		for range 2 {
			c := mustPick(t, b, Flow{Frontend: lb.Frontend{Protocol: lb.UDP, Addr: front}})
			if c.Backend() == address(1) {
				c.Failed(errRefused, now)
				continue
			}
			c.Answered()
			c.Done(nil)
		}
	}
	for range 5 {
		ask(0)
	}
	b.Health().Trials(30*second, 9)
	ask(30 * second)
	ask(30 * second)
	if all := *events; len(all) != 3 || !all[1].Returned || all[2].Returned || all[2].Time != 60*second {
		t.Errorf("%+v", all)
	}
}

// A backend that fails most of the time, but never five times in a row, is ejected by its share if that is asked for.
func TestFailurePercentage(t *testing.T) {
	for _, c := range []struct {
		name           string
		percent, hosts int
		bad            []int
		volume         int
		want           uint64
	}{
		{"off", 0, 5, []int{1}, 100, 0},
		{"one of six", 75, 5, []int{1}, 100, 1},
		{"below the threshold", 81, 5, []int{1}, 100, 0},
		{"too few connections", 75, 5, []int{1}, 49, 0},
		{"too few backends", 75, 7, []int{1}, 100, 0},
		{"all of them", 75, 5, []int{1, 2, 3, 4, 5, 6}, 100, 0},
		{"two of six", 75, 5, []int{1, 4}, 100, 2},
	} {
		b, events := &Balancer{Outlier: lb.DefaultOutlier}, 0
		b.Outlier.FailurePercentage, b.Outlier.FailureMinimumHosts = c.percent, c.hosts
		b.OnEjection = func(lb.Ejection) { events++ }
		b.Update(mustTable(t, []lb.Service{echo(1, 2, 3, 4, 5, 6)}))
		for round := range c.volume {
			for range 6 {
				choice, bad := mustPick(t, b, Flow{}), false
				for _, i := range c.bad {
					bad = bad || choice.Backend() == address(i)
				}
				if bad && round%5 > 0 { // four of five
					choice.Failed(errRefused, 0)
					continue
				}
				choice.Answered()
				choice.Done(nil)
			}
		}
		next := b.Health().JudgeShares(10 * second)
		if n := b.Health().Stats(); n.Enforced != c.want || uint64(events) != c.want || (next == 0) != (c.percent == 0) {
			t.Errorf("%s: %+v, %d events, next at %d; want %d ejected", c.name, n, events, next, c.want)
		}
		if again := b.Health().JudgeShares(11 * second); again != next || b.Health().Stats().Enforced != c.want {
			t.Errorf("%s: judged again after a second", c.name)
		}
		if c.want > 0 && b.Health().JudgeShares(20*second) != 30*second {
			t.Errorf("%s: not judged each interval", c.name)
		}
	}
}

// Ejections are handed over with all that belongs to them, and so is their end.
func TestEjectionsAreTakenOver(t *testing.T) {
	old, _ := ejecting(t, echo(1, 2, 3))
	failUntil(t, old, 5, 7*second, address(1))
	failUntil(t, old, 3, 7*second, address(2))
	next, events := ejecting(t, echo(1, 2, 3))
	next.Memory().Remember(old.Counters().All())
	explained := func(b *Balancer) string {
		text := b.Explain(Flow{Frontend: lb.Frontend{Protocol: lb.TCP, Addr: front}, Now: 10 * second})
		return text[:strings.Index(text, "goes to")]
	}
	if was, is := explained(old), explained(next); was != is || !strings.Contains(is, "ejected 3 s ago, for up to 27 s more (1 in a row), as refused") {
		t.Errorf("explained as\n%swant\n%s", is, was)
	}
	if was, is := old.Counters().All(), next.Counters().All(); !reflect.DeepEqual(was, is) || next.Health().Stats().Active != 1 {
		t.Errorf("%+v\nwant\n%+v", is, was)
	}
	next.Memory().Remember(old.Counters().All())
	due, at := next.Health().Trials(8*second, 9)
	if len(due) != 1 || at != 9*second || next.Health().Stats().Active != 1 {
		t.Fatalf("%v, %d, %+v", due, at, next.Health().Stats())
	}
	trial, _ := old.Health().Trials(8*second, 9)
	trial[0].Passed(8 * second)
	next.Memory().Remember(old.Counters().All())
	if all := next.Counters().All(); !reflect.DeepEqual(all, old.Counters().All()) || next.Health().Stats().Active != 0 || !all[0].Backends[0].Eligible {
		t.Errorf("%+v", all)
	}
	due[0].Passed(9 * second) // of one that has returned
	if len(*events) > 0 {
		t.Errorf("what another one has done is told again: %+v", *events)
	}
}

// Paths that know nothing of ejections get backends that are not ready instead.
func TestWithoutEjected(t *testing.T) {
	s := echo(1, 2, 3)
	s.Backends[0].Local = true
	s.Addresses = append(s.Addresses, lb.Address{Addr: address(99), Kind: lb.ExternalIP, Local: true})
	b, _ := ejecting(t, s)
	is, _ := b.Table().Service(s.ID)
	if got := b.Health().WithoutEjected(is); got != is {
		t.Errorf("nothing is ejected, and it is %+v", got)
	}
	failUntil(t, b, 5, 0, address(2))
	got := b.Health().WithoutEjected(is)
	if e := got.Eligible(); len(e) != 2 || e[0].Addr != address(1) || e[1].Addr != address(3) || !got.Backends[1].Live() || !is.Backends[1].Ready {
		t.Errorf("%+v", got)
	}
	due, _ := b.Health().Trials(second, 9)
	due[0].Passed(second)
	failUntil(t, b, 5, second, address(1)) // the only one of its node stays there
	if got := b.Health().WithoutEjected(is); !got.Equal(is) {
		t.Errorf("%+v", got)
	}
}

// A backend that fails its check gets no connections until it passes, unless too few would stay.
func TestChecks(t *testing.T) {
	s := echo(1, 2, 3)
	b, events := ejecting(t, s)
	asked := func() (n [4]int) {
		for range 6 {
			c := mustPick(t, b, Flow{})
			n[c.Backend().Addr().As4()[3]]++
			c.Done(nil)
		}
		return n
	}
	for range 2 { // the second says nothing new
		b.Health().Checked(s.ID, address(2), lb.TCP, errRefused, 0)
	}
	b.Health().Checked(s.ID, address(9), lb.TCP, errRefused, 0)
	b.Health().Checked(lb.ID{Name: "gone"}, address(2), lb.TCP, errRefused, 0)
	if got := asked(); got != [4]int{0, 3, 0, 3} || b.Health().Failing() != 1 {
		t.Errorf("asked %v, %d are failing", got, b.Health().Failing())
	}
	if text := b.Explain(Flow{Frontend: lb.Frontend{Protocol: lb.TCP, Addr: front}}); !strings.Contains(text, "10.1.0.2:8080 fails its check, as refused") {
		t.Error(text)
	}
	b.Health().Checked(s.ID, address(3), lb.TCP, errRefused, 0)
	if got := asked(); got != [4]int{0, 2, 2, 2} {
		t.Errorf("below the panic threshold asked %v", got)
	}
	b.Health().Checked(s.ID, address(3), lb.TCP, nil, 0)
	next, _ := ejecting(t, s)
	next.Memory().Remember(b.Counters().All())
	if next.Health().Failing() != 1 || !reflect.DeepEqual(next.Counters().All(), b.Counters().All()) {
		t.Errorf("taken over: %+v", next.Counters().All())
	}
	b.Update(mustTable(t, []lb.Service{echo(1, 2, 3, 4)}))
	if b.Health().Failing() != 1 {
		t.Errorf("%d are failing after another one has joined", b.Health().Failing())
	}
	b.Update(mustTable(t, []lb.Service{echo(1, 3)}))
	if b.Health().Failing() != 0 {
		t.Errorf("%d are failing after it has left", b.Health().Failing())
	}
	if all := *events; len(all) != 3 || !all[0].Check || all[0].Returned || !all[2].Returned {
		t.Errorf("%+v", all)
	}
}

// A check that passes ends an ejection; one that fails is no ejection.
func TestCheckReadmits(t *testing.T) {
	s := echo(1, 2, 3)
	b, events := ejecting(t, s)
	failUntil(t, b, 5, 0, address(1))
	b.Health().Checked(s.ID, address(1), lb.TCP, errRefused, second)
	b.Health().Checked(s.ID, address(1), lb.TCP, nil, 2*second)
	if o := b.Health().Stats(); o.Active != 0 || b.Health().Failing() != 0 || len(*events) != 3 || !(*events)[2].Returned || (*events)[2].Time != 2*second {
		t.Errorf("%+v, %+v", o, *events)
	}
	for _, k := range b.Counters().All()[0].Backends {
		if !k.Eligible {
			t.Errorf("%+v", k)
		}
	}
}

// What review found: each of these once did not hold.
func TestEjectionsOfMany(t *testing.T) {
	t.Run("the kernel's paths learn of it at once where rings wait", func(t *testing.T) {
		s := echo(numbers(2 * fewBackends)...)
		b, _ := ejecting(t, s)
		is, _ := b.Table().Service(s.ID)
		b.Health().Checked(s.ID, address(7), lb.TCP, errRefused, 0)
		if n := len(b.Health().WithoutEjected(is).Eligible()); n != 2*fewBackends-1 {
			t.Errorf("%d are eligible", n)
		}
	})
	t.Run("those that get no connections anyhow take no share", func(t *testing.T) {
		s := echo(1, 2, 3)
		b, events := ejecting(t, s)
		failUntil(t, b, 5, 0, address(3))
		s = echo(1, 2, 3)
		s.Backends[2].Ready = false
		b.Update(mustTable(t, []lb.Service{s}))
		failUntil(t, b, 5, 0, address(2))
		if all := *events; len(all) != 2 || all[1].Backend != address(2) {
			t.Errorf("%+v, %+v", all, b.Health().Stats())
		}
	})
	t.Run("who has left is not ejected", func(t *testing.T) {
		b, _ := ejecting(t, echo(1, 2, 3))
		var left []Choice
		for len(left) < 5 {
			if c := mustPick(t, b, Flow{}); c.Backend() == address(1) {
				left = append(left, c)
			} else {
				c.Answered()
				c.Done(nil)
			}
		}
		b.Update(mustTable(t, []lb.Service{echo(2, 3)}))
		for _, c := range left {
			request(t, b, 0) // another one succeeds meanwhile
			c.Failed(errRefused, 0)
		}
		if n := b.Health().Stats().Active; n != 0 {
			t.Errorf("%d are ejected", n)
		}
	})
	t.Run("services take turns at trials", func(t *testing.T) {
		many, one := echo(numbers(40)...), echo(100, 101)
		one.Name, one.Addresses = "one", []lb.Address{{Addr: address(200)}}
		b := &Balancer{Outlier: lb.DefaultOutlier}
		b.Update(mustTable(t, []lb.Service{many, one}))
		for i := range 20 {
			failUntil(t, b, 5, 0, address(i))
		}
		for failed := 0; failed < 5; {
			c := mustPick(t, b, Flow{Frontend: lb.Frontend{Protocol: lb.TCP, Addr: address(200)}})
			if c.Backend() == address(100) {
				c.Failed(errRefused, 0)
				failed++
				continue
			}
			c.Answered()
			c.Done(nil)
		}
		due, _ := b.Health().Trials(second, 2)
		if len(due) != 2 || due[0].Backend() != address(0) || due[1].Backend() != address(100) {
			t.Errorf("%v", due)
		}
	})
	t.Run("one that accepts and resets is out for its whole time", func(t *testing.T) {
		b, events := ejecting(t, echo(1, 2, 3))
		serve(t, b, 15, 1)
		if due, next := b.Health().Trials(30*second-1, 9); len(due) > 0 || next != 30*second {
			t.Fatalf("%v, next %d", due, next)
		}
		due, _ := b.Health().Trials(30*second, 9)
		due[0].Passed(30 * second)
		serve(t, b, 3, 1) // the first reset is one too many
		if all := *events; len(all) != 3 || all[2].Returned || all[2].Backend != address(1) {
			t.Errorf("%+v", all)
		}
	})
	t.Run("shares are those of the interval after a hand-over", func(t *testing.T) {
		old, _ := ejecting(t, echo(1, 2, 3))
		for range 300 {
			c := mustPick(t, old, Flow{})
			if c.Backend() == address(1) {
				c.Failed(errRefused, 0)
				c.backend.health.Load().runs[connecting].failures.Store(0)
				continue
			}
			c.Done(nil)
		}
		next := &Balancer{Outlier: lb.DefaultOutlier}
		next.Outlier.FailurePercentage, next.Outlier.FailureMinimumHosts = 50, 2
		next.Update(old.Table())
		next.Memory().Remember(old.Counters().All())
		if next.Health().JudgeShares(second); next.Health().Stats().Enforced > 0 {
			t.Error("ejected for what it has done in the process before")
		}
	})
	t.Run("hashes have no slow start", func(t *testing.T) {
		s := echo(1, 2)
		s.Policies = &lb.Policies{Scheduler: "mh", SlowStart: 30 * second}
		b := balancing(t, s)
		more := echo(1, 2, 3)
		more.Policies = &lb.Policies{Scheduler: "mh", SlowStart: 30 * second}
		b.Update(mustTable(t, []lb.Service{more}))
		for _, k := range b.service(s.ID).backends {
			if k.starts() != nil {
				t.Errorf("%s starts slowly", k.addr)
			}
		}
	})
	t.Run("all have a place in Maglev's table", func(t *testing.T) {
		s := echo(numbers(4000)...)
		s.Policies = &lb.Policies{Scheduler: "mh"}
		for i := range s.Backends {
			if s.Backends[i].Weight = 1; i%2 == 0 {
				s.Backends[i].Weight = 100
			}
		}
		b := balancing(t, s)
		seen := make(map[uint32]bool)
		for _, at := range b.service(s.ID).method.sets[lb.ClusterSet].table {
			seen[at] = true
		}
		if len(seen) != 4000 {
			t.Errorf("%d of 4,000", len(seen))
		}
	})
}

// A client that makes a backend reset its connections, or leaves it without an answer, has it ejected neither at once
// nor while others are served; several clients have, and so does one alone after intervals without a success.
func TestOneClientEjectsNone(t *testing.T) {
	client := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}) }
	for name, fail := range map[string]func(c Choice, client netip.Addr, now int64){
		"resets": func(c Choice, client netip.Addr, now int64) {
			c.Answered()
			c.WasReset(errRefused, client, now)
		},
		"silence": func(c Choice, client netip.Addr, now int64) {
			c.NotAnswered(errRefused, client, now)
			c.Done(nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			var b *Balancer
			var events *[]lb.Ejection
			begin := func() { b, events = ejecting(t, echo(1, 2)) }
			// once has a client fail at backend 1, and be served by backend 2.
			once := func(from netip.Addr, now int64) (ejected bool) {
				for range 2 {
					c := mustPick(t, b, Flow{Now: now})
					if c.Backend() == address(1) {
						fail(c, from, now)
						continue
					}
					c.Answered()
					c.Spoke()
					c.Done(nil)
				}
				return len(*events) > 0
			}
			begin()
			for range 1000 {
				if once(client(1), 0) {
					t.Fatal("one client has it ejected at once")
				}
			}
			for i := range 1000 { // fewer than five clients do not by turns
				if once(client(1+i%4), 0) {
					t.Fatal("four clients have it ejected at once")
				}
			}
			if !once(client(5), 0) {
				t.Error("five clients have it not ejected")
			}

			begin()
			failures := 0
			for now := int64(0); !once(client(1), now); now += second {
				failures++
			}
			if failures != 40 {
				t.Errorf("one client alone has it ejected after %d failures, one a second, want 40", failures)
			}

			begin()
			for now := int64(0); now < 1000*second; now += second {
				if once(client(1), now) {
					t.Fatal("ejected though others are served")
				}
				if now%(30*second) == 0 {
					c := mustPick(t, b, Flow{Now: now})
					other := mustPick(t, b, Flow{Now: now})
					for _, c := range []Choice{c, other} {
						c.Answered()
						c.Spoke()
						c.Done(nil)
					}
				}
			}

			begin()
			for i := range 1000 { // a host has 2^64 addresses
				from := netip.MustParseAddr(fmt.Sprintf("2001:db8::%x", i+1))
				if once(from, 0) {
					t.Fatal("a /64 has it ejected")
				}
			}
		})
	}
	t.Run("a refused connect always counts", func(t *testing.T) {
		b, events := ejecting(t, echo(1, 2))
		failUntil(t, b, 5, 0, address(1))
		if len(*events) != 1 {
			t.Errorf("%+v", *events)
		}
	})
}
