package netfilter

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestRefs compares with a plain count and a plain set, after random changes.
func TestRefs(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var r Refs[int]
	counts, present := map[int]int{}, map[int]bool{}
	for step := range 2000 {
		x := rng.IntN(20)
		switch rng.IntN(6) {
		case 0, 1:
			r.Add(x, 1)
			counts[x]++
		case 2:
			if counts[x] > 0 {
				r.Add(x, -1)
				counts[x]--
			}
		case 3: // written
			for _, x := range r.Missing() {
				r.SetPresent(x, true)
				present[x] = true
			}
			for _, x := range r.Surplus() {
				r.SetPresent(x, false)
				delete(present, x)
			}
			if r.Settle(); !r.Settled() {
				t.Fatalf("step %d: not settled", step)
			}
		case 4:
			if rng.IntN(10) == 0 {
				r.ReleaseAll()
				clear(counts)
			}
		case 5:
			if rng.IntN(10) == 0 { // another program has changed everything
				clear(present)
				list := []int{1, 7, 21}
				for _, x := range list {
					present[x] = true
				}
				r.Found(list)
			}
		}
		var missing, surplus, all []int
		for x := range 30 {
			if wanted := counts[x] > 0; wanted != r.Wanted(x) || present[x] != r.Present(x) {
				t.Fatalf("step %d: %d is wanted %v and present %v", step, x, r.Wanted(x), r.Present(x))
			} else if wanted && !present[x] {
				missing = append(missing, x)
			} else if !wanted && present[x] {
				surplus = append(surplus, x)
			}
			if present[x] {
				all = append(all, x)
			}
		}
		if got := slices.Sorted(slices.Values(r.Missing())); !slices.Equal(got, missing) {
			t.Fatalf("step %d: missing %v, want %v", step, got, missing)
		}
		if got := slices.Sorted(slices.Values(r.Surplus())); !slices.Equal(got, surplus) {
			t.Fatalf("step %d: surplus %v, want %v", step, got, surplus)
		}
		if !r.Match(all) || r.Match(append(all, 99)) || len(all) > 0 && r.Match(all[1:]) {
			t.Fatalf("step %d: Match of %v", step, all)
		}
	}
}
