package stats

import (
	"math"
	"slices"
	"testing"
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

func TestMean(t *testing.T) {
	if m, e := Mean([]float64{1, 2, nan, 3, 4, 5}); m != 3 || math.Abs(e-math.Sqrt(0.5)) > 1e-12 {
		t.Errorf("mean %v with standard error %v, want 3 and the root of 0.5", m, e)
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
