package stats

import (
	"math"
	"slices"
)

// Present returns the values that are not NaN, sorted. It does not change its argument.
func Present(values []float64) []float64 {
	out := make([]float64, 0, len(values))
	for _, v := range values {
		if !math.IsNaN(v) {
			out = append(out, v)
		}
	}
	slices.Sort(out)
	return out
}

// Median returns the middle value, or the mean of the two in the middle.
func Median(values []float64) float64 {
	v := Present(values)
	n := len(v)
	switch {
	case n == 0:
		return math.NaN()
	case n%2 == 1:
		return v[n/2]
	}
	return (v[n/2-1] + v[n/2]) / 2
}

// Spread returns the least and the greatest value.
func Spread(values []float64) (least, greatest float64) {
	v := Present(values)
	if len(v) == 0 {
		return math.NaN(), math.NaN()
	}
	return v[0], v[len(v)-1]
}

// Mean returns the mean with its standard error. It needs two values at least.
func Mean(values []float64) (mean, standardError float64) {
	v := Present(values)
	n := float64(len(v))
	for _, x := range v {
		mean += x / n
	}
	var squares float64
	for _, x := range v {
		squares += (x - mean) * (x - mean)
	}
	return mean, math.Sqrt(squares / (n - 1) / n)
}

// Percentile returns the least value that at least p per cent of the values do not
// exceed (nearest rank); p is above 0 and at most 100.
func Percentile(values []float64, p float64) float64 {
	v := Present(values)
	if len(v) == 0 {
		return math.NaN()
	}
	rank := int(math.Ceil(p / 100 * float64(len(v))))
	return v[min(max(rank, 1), len(v))-1]
}

// Ratios divides a by b run by run: value i of both was measured in the same round,
// so that what changed between rounds (the processor's frequency, neighbours) cancels
// out. A pair is NaN if either value is, or if only b is 0; two zeros are equal, 1.
func Ratios(a, b []float64) []float64 {
	out := make([]float64, min(len(a), len(b)))
	for i := range out {
		switch {
		case b[i] != 0:
			out[i] = a[i] / b[i]
		case a[i] == 0:
			out[i] = 1
		default:
			out[i] = math.NaN()
		}
	}
	return out
}
