package report

import (
	"math"
	"slices"
	"strings"
	"testing"
)

func TestCurve(t *testing.T) {
	svg := Curve("a < b & c", "<x>", "&", []Line{
		{"sluice <1>", []Point{{100, 2}, {1, 1}, {10, 1.5}}}, // in any order
		{"haproxy 3", []Point{{1, 1}, {100, 2.001}}},
		{"nginx & co", []Point{{1, 0}, {10, math.NaN()}, {0, 3}, {100, math.Inf(1)}, {-1, 5}}},
		{"one", []Point{{1, 7}}},
		{"flat", []Point{{1, 3}, {1, 3}}},
	})
	wellFormed(t, svg)
	hasAll(t, "curve", svg, "a &lt; b &amp; c", "sluice &lt;1&gt;: 2", "haproxy 3: 2", ">100<", ">1<",
		colours["haproxy"])
	for _, not := range []string{"nginx", "one:"} {
		if strings.Contains(svg, not) {
			t.Errorf("%q is drawn, without two points", not)
		}
	}
	// The first line rises to the right: pixels of y count from the top.
	if !strings.Contains(svg, `d="M70.0 322.0 L295.0 276.2 L520.0 243.7"`) {
		t.Errorf("the path of the first line is not there:\n%s", svg)
	}
	for _, lines := range [][]Line{nil, {{"one", []Point{{1, 7}}}}, {{"none", []Point{{0, 0}, {1, -1}}}}} {
		if svg := Curve("", "", "", lines); svg != "" {
			t.Errorf("nothing to draw: %s", svg)
		}
	}
}

func TestPower(t *testing.T) {
	for n, want := range map[int]string{0: "1", 2: "100", 3: "1,000", 6: "1,000,000", -3: "0.001"} {
		if got := power(n); got != want {
			t.Errorf("10^%d is %s, want %s", n, got, want)
		}
	}
}

// TestCurvesOfReport draws only what was measured, and is valid.
func TestCurvesOfReport(t *testing.T) {
	r := &Report{Rounds: 1, Systems: []System{{Ours, "sluice 8f2f66fc (x)"}, {Queue, "sluice 8f2f66fc (x)"},
		{"nginx", "nginx/1.30.6"}}}
	samples := make(map[string][]Sample)
	add := func(workload, system, metric string, v float64, invalid bool) {
		r.Workloads = append(r.Workloads, Workload{Name: workload})
		family, _, _ := strings.Cut(workload, "-")
		samples[family] = append(samples[family], Sample{Workload: workload, System: system, Metric: metric, Unit: "ms",
			Value: v, Invalid: invalid})
	}
	for _, n := range []string{"1", "64", "1000"} {
		add("rr-"+n, Ours, CPU, 10, false)
		add("rr-"+n, "nginx", CPU, 12, n != "1")
		add("rr-"+n, Queue, CPU, 0.01, false)
		add("services-"+n, Ours, "ready", 100, false)
		add("services-udp-"+n, Ours, "change", 100, false) // of another kind
	}
	names := func() (names []string) {
		for _, p := range r.curves() {
			wellFormed(t, p.SVG)
			names = append(names, p.Name)
		}
		return names
	}
	if got := names(); len(got) > 0 {
		t.Errorf("nothing was measured: %q", got)
	}
	r.Compute(slices.Concat(samples["rr"], samples["services"]), nil)
	if got := names(); !slices.Equal(got, []string{"connections.svg", "services.svg"}) {
		t.Errorf("%q", got)
	}
	hasAll(t, "connections", r.curves()[0].SVG, "sluice 8f2f66fc: 10", "us a request")
	hasAll(t, "services", r.curves()[1].SVG, "costs: sluice 8f2f66fc", "ready, ms: 100")
	if svg := r.curves()[0].SVG; strings.Contains(svg, "nginx") || strings.Contains(svg, Queue) {
		t.Errorf("figures that are invalid, or no proxy's, are drawn:\n%s", svg)
	}
	add("connections-1", Ours, CPU, 20, false)
	add("connections-100000", Ours, CPU, 30, false)
	r.Compute(slices.Concat(samples["rr"], samples["connections"]), nil)
	hasAll(t, "connections", r.curves()[0].SVG, "sluice 8f2f66fc: 30", "100,000")
}
