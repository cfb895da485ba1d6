package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"time"
)

// example is a run of two rounds, the second on a machine that is half as fast.
func example() *Report {
	r := &Report{
		Date: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Command: "bench <&> x", Rounds: 2, Seconds: 1.5,
		Machine:   Machine{CPU: "Fast & Co", CPUs: 2, Kernel: "6.1", Forced: true, Busy: 0.5, Stolen: 0.02},
		Systems:   []System{{Ours, "1"}, {"haproxy", "2.6"}, {"nginx", "1.22"}},
		Workloads: []Workload{{"rr-64", "requests"}, {"idle", "memory"}, {"never", "ran"}},
		Problems:  []string{"nginx failed <once>"},
	}
	var samples []Sample
	add := func(workload, system, metric, unit string, values ...float64) {
		for round, v := range values {
			if !math.IsNaN(v) {
				samples = append(samples, Sample{round, workload, system, metric, unit, v})
			}
		}
	}
	add("rr-64", Ours, CPU, "us/request", 10, 20)
	add("rr-64", "haproxy", CPU, "us/request", 20, 40)
	add("rr-64", "nginx", CPU, "us/request", math.NaN(), 25)
	add("rr-64", Ours, P99, "us", 3, 3)
	add("rr-64", "haproxy", P99, "us", 2, 4)
	add("rr-64", Ours, Lost, "", 0, 1)
	add("idle", Ours, Memory, "B", 900.123456, 1000)
	add("idle", "haproxy", Memory, "B", 33000, 34000)
	r.Compute(samples, []Target{
		{Workload: "rr-64", Metric: CPU, Against: []string{"haproxy", "nginx"}, Limit: 0.79},
		{Workload: "rr-64", Metric: CPU, Against: []string{"haproxy"}, Limit: 0.5},
		{Workload: "rr-64", Metric: P99, Against: []string{"haproxy", "nginx"}, Limit: 1},
		{Workload: "rr-64", Metric: Lost},
		{Workload: "idle", Metric: Memory, Limit: 1024},
		{Workload: "idle", Metric: Memory, Base: "idle", Limit: 1},
		{Workload: "never", Metric: CPU, Limit: 1},
		{Workload: "rr-64", System: "haproxy", Metric: CPU, Against: []string{Ours, "nginx"}, Limit: 1.6, Least: true},
		{Workload: "rr-64", System: "haproxy", Metric: CPU, Against: []string{Ours}, Limit: 2.1, Least: true},
	})
	return r
}

func TestResultsAndVerdicts(t *testing.T) {
	r := example()
	if res := r.find("rr-64", "haproxy", CPU); res.Ratio != 2 || res.Median != 30 || res.Min != 20 || res.Max != 40 || res.Unit != "us/request" {
		t.Errorf("%+v", res)
	}
	if res := r.find("rr-64", "nginx", CPU); res.Ratio != 1.25 || !math.IsNaN(res.Values[0]) {
		t.Errorf("%+v", res)
	}
	want := []struct {
		state string
		got   float64
	}{{Misses, 0.8}, {Holds, 0.5}, {NotMeasured, math.NaN()}, {Misses, 1}, {Holds, 950.061728}, {Holds, 1}, {NotMeasured, math.NaN()},
		{Holds, 1.6}, {Misses, 2}}
	for i, w := range want {
		v := r.Verdicts[i]
		if got := v.Got; v.State != w.state || math.Abs(got-w.got) > 1e-9 || math.IsNaN(got) != math.IsNaN(w.got) {
			t.Errorf("verdict %d: %s", i, v)
		}
	}
	if r.Missed() != 3 {
		t.Errorf("%d missed", r.Missed())
	}
}

func TestPicturesAreWellFormed(t *testing.T) {
	r := example()
	r.Workloads[0].Name, r.Workloads[0].About = "rr-64", "<&>"
	pictures := r.Pictures()
	if len(pictures) != 2 || pictures[0].Name != "cpu-tcp.svg" || pictures[1].Name != "memory.svg" {
		t.Fatalf("%d pictures", len(pictures))
	}
	nasty := draw("a < b & c", []group{{"<g>", []bar{{"&", 1, 0.5, 2}, {"<", math.Inf(1), math.NaN(), 1}, {"n", 0, 0, 0}}}}, true)
	for _, svg := range []string{pictures[0].SVG, pictures[1].SVG, nasty, draw("", nil, false)} {
		dec := xml.NewDecoder(strings.NewReader(svg))
		depth, elements := 0, 0
		for {
			token, err := dec.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%v in\n%s", err, svg)
			}
			switch e := token.(type) {
			case xml.StartElement:
				depth++
				elements++
				if elements == 1 && (e.Name.Local != "svg" || e.Name.Space != "http://www.w3.org/2000/svg") {
					t.Errorf("begins with %v", e.Name)
				}
				for _, a := range e.Attr {
					if strings.Contains(a.Value, "NaN") || strings.Contains(a.Value, "Inf") || strings.HasPrefix(a.Value, "-") {
						t.Errorf("%s has %s=%q", e.Name.Local, a.Name.Local, a.Value)
					}
				}
			case xml.EndElement:
				depth--
			}
		}
		if depth != 0 || elements < 4 {
			t.Errorf("%d elements, depth %d at the end", elements, depth)
		}
	}
	for _, word := range []string{"haproxy", "2.00", "rr-64"} {
		if !strings.Contains(pictures[0].SVG, word) {
			t.Errorf("no %q in the picture", word)
		}
	}
}

func TestTableAndPage(t *testing.T) {
	var table, page bytes.Buffer
	r := example()
	if err := errors.Join(r.WriteTable(&table), r.WriteMarkdown(&page, []string{"cpu-tcp.svg"})); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"rr-64: requests", "10 .. 20", "2.00", "misses", "not measured", "NOT idle", "nginx failed"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("no %q in the table:\n%s", want, table.String())
		}
	}
	for _, want := range []string{"| haproxy | 30 | 20 .. 40 | 2.00 |", "![cpu-tcp](cpu-tcp.svg)", "**misses**", "2026-01-02", "NOT idle", "at least 7 rounds"} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("no %q on the page:\n%s", want, page.String())
		}
	}
	if strings.Contains(page.String(), "NaN") || strings.Contains(table.String(), "NaN") {
		t.Error("what was not measured is shown as NaN")
	}
}

func TestFigures(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 12: "12", 12.345: "12.3", 0.012345: "0.0123", 12345.6: "12346", 999.96: "1000",
	} {
		if got := figure(v); got != want {
			t.Errorf("%v is %q, want %q", v, got, want)
		}
	}
}
