package redirect

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/sluice-lb/sluice/lb"
)

// TestTCPOnly changes TCP frontends at random, repeated ones and those of the other
// family among them, and now and then something else: the set holds what the plan
// says, whichever way that was brought about.
func TestTCPOnly(t *testing.T) {
	eachSetVariant(t, func(t *testing.T, v variant) {
		newNode(t)
		s := v.steerer()
		rng := rand.New(rand.NewPCG(5, 6))
		pool := slices.Concat(manyTCP(v.ipv6, 40), manyTCP(!v.ipv6, 10))
		plan := Plan{TCPPort: 40000}
		syncPlan(t, s, plan)
		short := 0
		for step := range 200 {
			plan.TCP = slices.Clone(plan.TCP)
			for range 1 + rng.IntN(30)/10*rng.IntN(20) {
				if at := rng.IntN(len(plan.TCP) + 1); at < len(plan.TCP) && rng.IntN(2) == 0 {
					plan.TCP = slices.Delete(plan.TCP, at, at+1)
				} else if addr := pool[rng.IntN(len(pool))]; step%50 < 10 || !slices.Contains(plan.TCP, addr) {
					plan.TCP = slices.Insert(plan.TCP, at, addr)
				}
			}
			if step%50 == 10 { // none is listed twice from here on
				slices.SortFunc(plan.TCP, compareAddr)
				plan.TCP = slices.Compact(plan.TCP)
			}
			plan.Refuse = nil
			if f := tcp(pool[rng.IntN(len(pool))]); rng.IntN(5) == 0 && !slices.Contains(plan.TCP, f.Addr) {
				plan.Refuse = []lb.Frontend{f}
			}
			before := s.kernel.own
			done, err := s.tcpOnly(plan)
			if err != nil {
				t.Fatal(err)
			}
			if done {
				short++
				if !slices.Equal(before.Refuse, s.kernel.own.Refuse) {
					t.Fatalf("step %d: something else has changed as well", step)
				}
			}
			syncPlan(t, s, plan)
			own, err := plan.family(v.ipv6)
			if err != nil {
				t.Fatal(err)
			}
			have, err := s.kernel.shape.kernelSet(setTCP).Read()
			if want := members(own)[setTCP]; err != nil || !slices.Equal(have, want) {
				t.Fatalf("step %d: the set has %v, %v, want %v", step, have, err, want)
			}
		}
		if ok, err := s.Verify(t.Context()); !ok || err != nil {
			t.Errorf("Verify = %v, %v", ok, err)
		}
		if short < 20 || short > 190 {
			t.Errorf("%d of 200 changes took the short way: the test has to see many of both", short)
		}
	})
}

// TestTCPOnlyRefusesNonsense: what a plan must not say is an error the short way too.
func TestTCPOnlyRefusesNonsense(t *testing.T) {
	eachSetVariant(t, func(t *testing.T, v variant) {
		newNode(t)
		s := v.steerer()
		all := manyTCP(v.ipv6, 3)
		plan := Plan{TCPPort: 40000, TCP: all[:1], Refuse: []lb.Frontend{tcp(all[1])}}
		syncPlan(t, s, plan)
		for _, addr := range []netip.AddrPort{all[1], netip.AddrPortFrom(all[2].Addr(), 0), {}} {
			wrong := plan
			wrong.TCP = []netip.AddrPort{all[0], addr}
			if err := s.Sync(t.Context(), wrong); err == nil {
				t.Errorf("Sync took %v beside a refusal of %v", wrong.TCP, all[1])
			}
			syncPlan(t, s, plan)
		}
	})
}
