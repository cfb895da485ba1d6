package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// histogram is one of Prometheus's: how many values were at most each bound, all of
// them at the end.
type histogram struct{ bounds, counts []float64 }

// parseHistogram reads the buckets of a series from Prometheus's text. Its bounds are
// multiplied by unit; labels are all but the last, le.
func parseHistogram(text, name, labels string, unit float64) (h histogram, err error) {
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, name+"_bucket{"+labels+`,le="`)
		if !ok {
			continue
		}
		bound, value, _ := strings.Cut(rest, `"} `)
		upTo, errBound := strconv.ParseFloat(bound, 64)
		count, errCount := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if errBound != nil || errCount != nil {
			return histogram{}, fmt.Errorf("read metrics: %q is no bucket", strings.TrimSpace(line))
		}
		h.bounds, h.counts = append(h.bounds, upTo*unit), append(h.counts, count)
	}
	if n := len(h.bounds); n == 0 || !math.IsInf(h.bounds[n-1], 1) {
		return histogram{}, fmt.Errorf("read metrics: no histogram %s", name)
	}
	return h, nil
}

// since returns what has come to h since it was before. Both have the same bounds.
func (h histogram) since(before histogram) histogram {
	out := histogram{bounds: h.bounds, counts: make([]float64, len(h.counts))}
	for i, n := range h.counts {
		out.counts[i] = n - before.counts[i]
	}
	return out
}

// count returns how many values there are.
func (h histogram) count() float64 {
	if len(h.counts) == 0 {
		return 0
	}
	return h.counts[len(h.counts)-1]
}

// quantile returns about how much p per cent of the values do not exceed, as if those in
// a bucket were evenly spread: good to a bucket. It is NaN without values, and the
// highest finite bound if the value is beyond that.
func (h histogram) quantile(p float64) float64 {
	if h.count() == 0 {
		return math.NaN()
	}
	rank := p / 100 * h.count()
	low, below := 0.0, 0.0
	for i, n := range h.counts {
		if math.IsInf(h.bounds[i], 1) {
			break
		}
		if n >= rank && n > below {
			return low + (h.bounds[i]-low)*(rank-below)/(n-below)
		}
		low, below = h.bounds[i], n
	}
	return low
}
