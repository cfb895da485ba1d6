package balancer

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/sluice-lb/sluice/lb"
)

func TestTurnsAreExactUnderConcurrency(t *testing.T) {
	const goroutines, rounds, n = 8, 500, 7
	b := balancing(t, echo(numbers(n)...))
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for range rounds * n {
				mustPick(t, b, Flow{}).Done(nil)
			}
		})
	}
	wg.Wait()
	for _, s := range b.Counters().All()[0].Backends {
		if s.Picks != goroutines*rounds || s.InFlight != 0 {
			t.Errorf("%s was picked %d times, with %d in flight; want %d and 0",
				s.Addr, s.Picks, s.InFlight, goroutines*rounds)
		}
	}
}

// The order must differ between services and between seeds, with every order and
// every beginning about equally likely.
func TestOrderIsShuffled(t *testing.T) {
	for name, build := range map[string]func(i int) (*Balancer, lb.Service){
		"services": func(i int) (*Balancer, lb.Service) {
			s := echo(1, 2, 3, 4)
			s.Name = fmt.Sprint("echo-", i)
			return &Balancer{}, s
		},
		"seeds": func(i int) (*Balancer, lb.Service) { return &Balancer{Seed: uint64(i)}, echo(1, 2, 3, 4) },
	} {
		t.Run(name, func(t *testing.T) {
			const times, orders = 2400, 24
			seen := map[[4]netip.AddrPort]int{}
			for i := range times {
				b, s := build(i)
				b.Update(mustTable(t, []lb.Service{s}))
				var order [4]netip.AddrPort
				for j := range order {
					order[j] = mustPick(t, b, Flow{}).Backend()
				}
				seen[order]++
			}
			if len(seen) != orders {
				t.Errorf("saw %d orders, want %d", len(seen), orders)
			}
			for order, n := range seen { // 100 ± 6 standard deviations
				if n < 41 || n > 159 {
					t.Errorf("order %v came %d times of %d", order, n, times)
				}
			}
		})
	}
}

// After a change in the middle of a round, the survivors that still wait for
// their turn in it get it before those that have had theirs, both in the old
// order.
func TestRoundGoesOnAfterChange(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 2000 {
		b := Balancer{Seed: rng.Uint64()}
		before := rng.Perm(30)[:1+rng.IntN(12)]
		after := rng.Perm(30)[:1+rng.IntN(12)]
		b.Update(mustTable(t, []lb.Service{echo(before...)}))
		var round []netip.AddrPort
		for range before {
			round = append(round, mustPick(t, &b, Flow{}).Backend())
		}
		had := rng.IntN(len(round))
		for range had {
			mustPick(t, &b, Flow{})
		}
		b.Update(mustTable(t, []lb.Service{echo(after...)}))

		survives := func(a netip.AddrPort) bool {
			return slices.ContainsFunc(after, func(i int) bool { return address(i) == a })
		}
		var want, got []netip.AddrPort
		for _, a := range slices.Concat(round[had:], round[:had]) {
			if survives(a) {
				want = append(want, a)
			}
		}
		for range after {
			a := mustPick(t, &b, Flow{}).Backend()
			if slices.Contains(round, a) {
				got = append(got, a)
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("rng seed %d: after %d turns of %v, change to %v: got %v, want %v", seed, had, round, after, got, want)
		}
	}
}

func TestTriedAreAvoidedWhileOthersPick(t *testing.T) {
	const n = 6
	b := balancing(t, echo(numbers(n)...))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 500 {
				var tried Tried
				seen := map[netip.AddrPort]bool{}
				for range n {
					c := mustPick(t, b, Flow{Tried: &tried})
					if seen[c.Backend()] {
						t.Errorf("%s was given twice", c.Backend())
					}
					seen[c.Backend()] = true
					tried.Add(c)
					c.Done(nil)
				}
			}
		})
	}
	wg.Wait()
}

func TestTriedRemembersTheLastEight(t *testing.T) {
	b := balancing(t, echo(numbers(12)...))
	var tried Tried
	var all []Choice
	for range 12 { // a whole round: each is another backend
		c := mustPick(t, b, Flow{})
		tried.Add(c)
		tried.Add(c) // again changes nothing
		all = append(all, c)
	}
	for i, c := range all {
		if got, want := tried.has(c.backend), i >= 4; got != want {
			t.Errorf("choice %d: remembered %t, want %t", i, got, want)
		}
	}
}

// One of n backends fails every attempt. First attempts still take exact turns, and
// the others share exactly what the failing one would have had, for two backends too.
func TestRetriesAreSpreadOverTheOthers(t *testing.T) {
	for n := 2; n <= 5; n++ {
		b := balancing(t, echo(numbers(n)...))
		dead := mustPick(t, b, Flow{}).backend
		rounds := 12 * (n - 1)
		first, served := map[*backend]int{}, map[*backend]int{}
		for range rounds * n {
			var tried Tried
			c := mustPick(t, b, Flow{Tried: &tried})
			first[c.backend]++
			if c.backend == dead {
				tried.Add(c)
				c = mustPick(t, b, Flow{Tried: &tried})
			}
			served[c.backend]++
		}
		for k, got := range first {
			if got != rounds {
				t.Errorf("%d backends: %s had %d first attempts, want %d", n, k.addr, got, rounds)
			}
		}
		if len(served) != n-1 {
			t.Fatalf("%d backends: %d served, want all but the one that fails", n, len(served))
		}
		for k, got := range served {
			if want := rounds + rounds/(n-1); got != want {
				t.Errorf("%d backends: %s served %d, want %d", n, k.addr, got, want)
			}
		}
	}
}
