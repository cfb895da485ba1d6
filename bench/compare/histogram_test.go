package main

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

func TestHistogram(t *testing.T) {
	text := func(counts ...int) string {
		var b strings.Builder
		for i, bound := range []string{"0.001", "0.002", "0.004", "+Inf"} {
			fmt.Fprintf(&b, "a_seconds_bucket{family=\"IPv6\",le=\"%s\"} 7\na_seconds_bucket{family=\"IPv4\",le=\"%s\"} %d\n", bound, bound, counts[i])
		}
		return b.String() + "a_seconds_sum{family=\"IPv4\"} 1\n"
	}
	read := func(text string) histogram {
		t.Helper()
		h, err := parseHistogram(text, "a_seconds", `family="IPv4"`, 1000)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	before, after := read(text(5, 5, 5, 5)), read(text(5, 9, 14, 15))
	h := after.since(before) // 4 from 1 to 2 ms, 5 from 2 to 4, and one beyond
	if h.count() != 10 {
		t.Errorf("%v values, want 10", h.count())
	}
	for p, want := range map[float64]float64{20: 1.5, 40: 2, 50: 2.4, 90: 4, 99: 4} {
		if got := h.quantile(p); math.Abs(got-want) > 1e-9 {
			t.Errorf("quantile %v is %v, want %v", p, got, want)
		}
	}
	for _, none := range []histogram{{}, after.since(after)} {
		if got := none.quantile(50); none.count() != 0 || !math.IsNaN(got) {
			t.Errorf("the median of nothing is %v", got)
		}
	}
	for _, wrong := range []string{"", strings.ReplaceAll(text(1, 1, 1, 1), "+Inf", "0.008"), strings.ReplaceAll(text(1, 1, 1, 1), "0.002", "x")} {
		if h, err := parseHistogram(wrong, "a_seconds", `family="IPv4"`, 1); err == nil {
			t.Errorf("%q gave %v", wrong, h)
		}
	}
}
