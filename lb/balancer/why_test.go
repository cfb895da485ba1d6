package balancer

import (
	"slices"
	"testing"

	"github.com/sluice-lb/sluice/lb"
)

// TestWhy: each pick says why, and what is given up says nothing new.
func TestWhy(t *testing.T) {
	why := lb.NotKnown
	asked := func(b *Balancer, f Flow, want string) {
		t.Helper()
		f.Why, why = &why, lb.NotKnown
		mustPick(t, b, f)
		if why.String() != want {
			t.Errorf("it was chosen for %q, want %q", why, want)
		}
	}
	for _, scheduler := range everyAlgorithm() {
		b := balancing(t, by(scheduler, 1, 1))
		asked(b, from(1), scheduler)
		var tried Tried
		tried.Add(mustPick(t, b, from(1)))
		f := from(1)
		f.Tried = &tried
		asked(b, f, "retry")
	}
	asked(balancing(t, by("", 3, 1)), from(1), "rr")

	b := balancing(t, sticky(echo(1, 2), second))
	asked(b, from(1), "rr")
	asked(b, from(1), "affinity")
	asked(b, from(2), "rr")
	of := from(1)
	of.Now = 2 * second // it was too long ago
	asked(b, of, "rr")

	b = balancing(t, limitedTo(1, 1, 2))
	asked(b, Flow{}, "rr")
	b.load().service(0).state.positions[lb.ClusterSet].first.Add(1) // the turn is that of the one which is full
	asked(b, Flow{}, "room")
	f := Flow{Frontend: lb.Frontend{Protocol: lb.TCP, Addr: front}, Why: &why}
	if _, err := b.Pick(f); err != ErrFull {
		t.Errorf("the third: %v", err)
	}

	b = &Balancer{Defaults: lb.Policies{SlowStart: second}}
	b.Update(mustTable(t, []lb.Service{echo(1, 2)}))
	b.Update(mustTable(t, []lb.Service{echo(1, 2, 3)}))
	var words []string
	for range 30 {
		f.Why, why = &why, lb.NotKnown
		mustPick(t, b, f)
		if !slices.Contains(words, why.String()) {
			words = append(words, why.String())
		}
	}
	if slices.Sort(words); !slices.Equal(words, []string{"rr", "slow_start"}) {
		t.Errorf("beside one that starts slowly the reasons are %q", words)
	}
	mustPick(t, b, Flow{}) // which does not ask
}
