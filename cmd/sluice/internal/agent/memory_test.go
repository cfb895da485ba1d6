package agent

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/redirect"
)

// keeper remembers what it was last told to steer, and nothing of the plan itself.
type keeper struct {
	idle
	tcp []netip.AddrPort
}

func (k *keeper) Sync(_ context.Context, plan redirect.Plan) error {
	k.tcp = append(k.tcp[:0], plan.TCP...)
	return nil
}

// numbered returns TCP Services with one address and endpoints each.
func numbered(services, endpoints int) []lb.Service {
	all := make([]lb.Service, services)
	for i := range all {
		s := lb.Service{ID: lb.ID{Namespace: "default", Name: fmt.Sprint("s", i), Protocol: lb.TCP}}
		s.Addresses = []lb.Address{{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), 80)}}
		for k := range endpoints {
			s.Backends = append(s.Backends, lb.Backend{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(k), byte(i >> 8), byte(i)}), 80), Ready: true, Serving: true})
		}
		all[i] = s
	}
	return all
}

func steering(k Steerer) *Agent {
	return &Agent{LB: new(lb.Balancer), TCP: idle{}, UDP: kernelLess{}, IPv4: Family{Steer: k}, Now: func() int64 { return 0 }, Log: zap.NewNop()}
}

// TestMemoryIsUsedAgain: what is submitted in the memory of what was in force before is
// served and steered, and what is in force is never in the memory that is given away.
func TestMemoryIsUsedAgain(t *testing.T) {
	k := new(keeper)
	a := steering(k)
	pool := numbered(40, 2)
	given := 0
	for step := range 200 {
		want := a.Spare()
		if want != nil {
			given++
		}
		if again := a.Spare(); again != nil {
			t.Fatalf("step %d: the same memory was given away twice", step)
		}
		want = want[:0]
		for i := range pool {
			if (step*7+i*13)%11 > 2 {
				want = append(want, pool[i])
			}
		}
		expect := slices.Clone(want)
		if err := a.Apply(t.Context(), Desired{Services: want}); err != nil {
			t.Fatal(err)
		}
		state := a.State()
		if fmt.Sprint(state.Services) != fmt.Sprint(expect) || fmt.Sprint(a.LB.Table().Services()) != fmt.Sprint(expect) {
			t.Fatalf("step %d: in force is %v, want %v", step, state.Services, expect)
		}
		var frontends []netip.AddrPort
		for _, s := range expect {
			frontends = append(frontends, s.Addresses[0].Addr)
		}
		if !slices.Equal(k.tcp, frontends) {
			t.Fatalf("step %d: steered is %v, want %v", step, k.tcp, frontends)
		}
		if step%5 == 0 { // the same once more leaves nothing to give away
			if err := a.Apply(t.Context(), Desired{Services: want}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if given < 100 {
		t.Errorf("memory was used again %d times of 200", given)
	}
}

// TestNextIsNotSpare: what Run is to apply next, be it once more, is not given away.
func TestNextIsNotSpare(t *testing.T) {
	a := steering(new(keeper))
	one, two := numbered(2, 1), numbered(3, 1)
	a.Submit(Desired{Services: one})
	for _, services := range [][]lb.Service{one, two} {
		if err := a.Apply(t.Context(), Desired{Services: services}); err != nil {
			t.Fatal(err)
		}
	}
	if spare := a.Spare(); sameMemory(spare, one) {
		t.Error("what was submitted and waits was given away")
	}
}

// TestBytesOfApply holds down what one change among 10,000 Services allocates; see
// TestBytesOfChange of lb.
func TestBytesOfApply(t *testing.T) {
	services := numbered(10_000, 10)
	fewer := slices.Clone(services)
	fewer[7].Backends = fewer[7].Backends[1:]
	a := steering(new(keeper))
	apply := func(list []lb.Service) {
		if err := a.Apply(t.Context(), Desired{Services: list}); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		what  string
		other []lb.Service
	}{{"endpoint", fewer}, {"Service", services[:9_999]}} {
		apply(c.other) // to begin with, memory is taken that serves again
		apply(services)
		const changes = 20
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range changes / 2 {
			apply(c.other)
			apply(services)
		}
		runtime.ReadMemStats(&after)
		const limit = 400 << 10 // a table and a snapshot are 200 KiB, and to remove takes two
		if each := (after.TotalAlloc - before.TotalAlloc) / changes; each > limit {
			t.Errorf("a change of one %s allocates %d bytes, at most %d are right", c.what, each, limit)
		}
	}
}
