package lb

import (
	"slices"
	"testing"
)

// TestWhy: each pick says why, and what is given up says nothing new.
func TestWhy(t *testing.T) {
	why := NotKnown
	asked := func(b *Balancer, f Flow, want string) {
		t.Helper()
		f.Why, why = &why, NotKnown
		mustPick(t, b, f)
		if why.String() != want {
			t.Errorf("it was chosen for %q, want %q", why, want)
		}
	}
	for _, scheduler := range algorithmNames {
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
	b.load().service(0).state.positions[ClusterSet].first.Add(1) // the turn is that of the one which is full
	asked(b, Flow{}, "room")
	f := Flow{Frontend: Frontend{TCP, front}, Why: &why}
	if _, err := b.Pick(f); err != ErrFull {
		t.Errorf("the third: %v", err)
	}

	b = &Balancer{Defaults: Policies{SlowStart: second}}
	b.Update(mustTable(t, []Service{echo(1, 2)}))
	b.Update(mustTable(t, []Service{echo(1, 2, 3)}))
	var words []string
	for range 30 {
		f.Why, why = &why, NotKnown
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

// TestWhyWords: each reason has a word of its own, and what is none has none.
func TestWhyWords(t *testing.T) {
	seen := map[string]bool{}
	for w := byAlgorithm; w <= ByHold; w++ {
		if s := w.String(); s == "" || seen[s] {
			t.Errorf("reason %d is %q", w, s)
		}
		seen[w.String()] = true
		if WhyOf(w.String()) != w {
			t.Errorf("%s is reason %d", w, WhyOf(w.String()))
		}
	}
	if WhyOf("") != NotKnown || WhyOf("a later one") != NotKnown {
		t.Error("a word of another version says something")
	}
	if len(seen) != len(algorithmNames)+len(otherReasons) || NotKnown.String()+(ByHold+1).String() != "" {
		t.Errorf("there are %d words, and %q and %q for none", len(seen), NotKnown, ByHold+1)
	}
}
