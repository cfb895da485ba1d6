package lb

import "testing"

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
