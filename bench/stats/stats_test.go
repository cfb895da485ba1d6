package stats

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

var nan = math.NaN()

func same(a, b float64) bool { return a == b || math.IsNaN(a) && math.IsNaN(b) }

func TestMedianAndSpread(t *testing.T) {
	for _, test := range []struct {
		values                []float64
		median, least, larger float64
	}{
		{nil, nan, nan, nan},
		{[]float64{nan, nan}, nan, nan, nan},
		{[]float64{3}, 3, 3, 3},
		{[]float64{9, 1, 4}, 4, 1, 9},
		{[]float64{9, 1, nan, 4, 2}, 3, 1, 9},
		{[]float64{-1, 0}, -0.5, -1, 0},
	} {
		before := slices.Clone(test.values)
		least, larger := Spread(test.values)
		if m := Median(test.values); !same(m, test.median) || !same(least, test.least) || !same(larger, test.larger) {
			t.Errorf("%v: median %v, from %v to %v; want %v, %v, %v", test.values, m, least, larger, test.median, test.least, test.larger)
		}
		for i := range before {
			if !same(before[i], test.values[i]) {
				t.Errorf("%v was changed to %v", before, test.values)
			}
		}
	}
}

func TestPercentile(t *testing.T) {
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[i] = float64(100 - i)
	}
	for _, test := range []struct {
		values  []float64
		p, want float64
	}{
		{hundred, 99, 99}, {hundred, 99.5, 100}, {hundred, 100, 100}, {hundred, 1, 1}, {hundred, 0.1, 1},
		{[]float64{7, nan}, 99, 7}, {nil, 50, nan},
	} {
		if got := Percentile(test.values, test.p); !same(got, test.want) {
			t.Errorf("%v per cent: %v, want %v", test.p, got, test.want)
		}
	}
}

// TestRatiosArePaired has a machine that becomes twice as slow in between: medians
// divided by each other would blame one of the two, and pairs do not.
func TestRatiosArePaired(t *testing.T) {
	ours := []float64{10, 10, 20, 20, nan}
	theirs := []float64{20, 20, 40, 40, 40}
	if got := Median(Ratios(ours, theirs)); got != 0.5 {
		t.Errorf("the ratio is %v, want 0.5", got)
	}
	got := Ratios([]float64{0, 0, 3, nan, 1}, []float64{0, 2, 0, 1, nan})
	for i, want := range []float64{1, 0, nan, nan, nan} {
		if !same(got[i], want) {
			t.Errorf("pair %d is %v, want %v", i, got[i], want)
		}
	}
	if n := len(Ratios(make([]float64, 3), make([]float64, 2))); n != 2 {
		t.Errorf("%d pairs of 3 and 2 values", n)
	}
}

func TestBucketsAreWholeAndNarrow(t *testing.T) {
	prev := -1
	for i := range buckets {
		v := last(i)
		if bucket(v) != i {
			t.Fatalf("the last value of bucket %d, %d, is in bucket %d", i, v, bucket(v))
		}
		if i+1 < buckets && bucket(v+1) != i+1 {
			t.Fatalf("%d is in bucket %d, want %d", v+1, bucket(v+1), i+1)
		}
		if width := int(v) - prev; width > 1 && width > int(v)/perPower {
			t.Fatalf("bucket %d is %d wide at %d", i, width, v)
		}
		prev = int(v)
	}
	if last(buckets-1) != math.MaxInt64 {
		t.Errorf("the last bucket ends at %d", last(buckets-1))
	}
}

func TestQuantiles(t *testing.T) {
	var h Histogram
	if h.Quantile(0.5) != 0 || h.Max() != 0 || h.Count() != 0 {
		t.Error("an empty histogram has something in it")
	}
	rng := rand.New(rand.NewPCG(1, 2))
	var all []float64
	for range 20000 {
		d := time.Duration(math.Exp(rng.Float64() * 20))
		h.Record(d)
		all = append(all, float64(d))
	}
	for _, q := range []float64{0, 0.01, 0.5, 0.9, 0.99, 0.999, 1} {
		want, got := Percentile(all, q*100), float64(h.Quantile(q))
		if got < want || got > want*(1+1.0/perPower)+1 {
			t.Errorf("quantile %v is %v, want %v", q, got, want)
		}
	}
	if float64(h.Max()) != slices.Max(all) || h.Count() != uint64(len(all)) {
		t.Errorf("the greatest of %d is %v, want %v of %d", h.Count(), h.Max(), slices.Max(all), len(all))
	}
	h.Record(-time.Second)
	if h.Quantile(0) != 0 {
		t.Error("a negative duration is not 0")
	}
}
