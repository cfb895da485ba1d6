package kube

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/sluice-lb/sluice/lb"
)

// TestSpare: what is converted into the memory of an earlier result is what Convert
// makes, the result in between stays, and nothing that is gone is left behind its end.
func TestSpare(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	pool := many(40, 20)
	var c Converter
	var o Objects
	var last, before Result
	var wasLast string
	used := 0
	for step := range 300 {
		o = Objects{Services: slices.Clone(o.Services), Slices: slices.Clone(o.Slices)}
		for range 1 + rng.IntN(5) {
			o.Services = toggle(rng, o.Services, pool.Services)
			o.Slices = toggle(rng, o.Slices, pool.Slices)
		}
		spare := before.Services
		c.Spare = spare
		r := c.Convert(o, Options{})
		if got, want := describe(r), describe(convert(o, Options{})); got != want {
			t.Fatalf("step %d: the Converter says\n%s\na new one\n%s", step, got, want)
		}
		if c.Spare != nil {
			t.Fatalf("step %d: the memory is still there for the next", step)
		}
		if step > 0 && describe(last) != wasLast {
			t.Fatalf("step %d: the result before is\n%s\nand was\n%s", step, describe(last), wasLast)
		}
		if n := len(r.Services); n > 0 && cap(spare) >= n {
			used++
			for _, s := range spare[min(n, len(spare)):] {
				if s.ID != (lb.ID{}) || s.Backends != nil {
					t.Fatalf("step %d: %s is kept alive behind the end", step, s.ID)
				}
			}
		}
		before, last, wasLast = last, r, describe(r)
	}
	if used < 50 {
		t.Errorf("memory was used again %d times of 300", used)
	}
}
