package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

// example is a run of two rounds, the second on a machine that is half as fast.
func example() *Report {
	r := &Report{
		Date: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Command: "bench <&> x", Rounds: 2, Seconds: 1.5,
		Machine: Machine{CPU: "Fast & Co", CPUs: 2, Kernel: "6.1", Go: "go1.26.8", Forced: true, Busy: 0.5,
			Stolen: 0.02},
		Systems: []System{{Ours, "sluice 8f2f66fc (revision 8f2f66fc00, go1.26.8)"},
			{"haproxy", "HAProxy version 3.2.26-1 2026/10/14"}, {"nginx", "nginx version: nginx/1.30.6"}},
		Workloads: []Workload{{"rr-64", "requests"}, {"idle", "memory"}, {"never", "ran"}},
		Problems:  []string{"nginx failed <once>"},
	}
	var samples []Sample
	add := func(workload, system, metric, unit string, values ...float64) {
		for round, v := range values {
			if !math.IsNaN(v) {
				samples = append(samples, Sample{Round: round, Workload: workload, System: system, Metric: metric,
					Unit: unit, Value: v})
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
		{Workload: "rr-64", Metric: CPU, Against: []string{"haproxy", "nginx"}, Limit: 0.7, Must: 0.8},
		{Workload: "rr-64", Metric: CPU, Against: []string{"haproxy", "nginx"}, Limit: 0.7, Must: 0.79},
	})
	return r
}

func TestResultsAndVerdicts(t *testing.T) {
	r := example()
	if res := r.find("rr-64", "haproxy", CPU); res.Ratio != 2 || res.Median != 30 || res.Min != 20 || res.Max != 40 ||
		res.Unit != "us/request" {
		t.Errorf("%+v", res)
	}
	if res := r.find("rr-64", "nginx", CPU); res.Ratio != 1.25 || !math.IsNaN(res.Values[0]) {
		t.Errorf("%+v", res)
	}
	want := []struct {
		state string
		got   float64
	}{{Misses, 0.8}, {Holds, 0.5}, {NotMeasured, math.NaN()}, {Misses, 1}, {Holds, 950.061728}, {Holds, 1},
		{NotMeasured, math.NaN()},
		{Holds, 1.6}, {Misses, 2}, {Misses, 0.8}, {Fails, 0.8}}
	for i, w := range want {
		v := r.Verdicts[i]
		if got := v.Got; v.State != w.state || math.Abs(got-w.got) > 1e-9 || math.IsNaN(got) != math.IsNaN(w.got) {
			t.Errorf("verdict %d: %s", i, v)
		}
	}
	if missed, failed := r.Missed(); missed != 5 || failed != 1 {
		t.Errorf("%d missed, %d failed", missed, failed)
	}
}

// wellFormed checks a picture as XML, and that all figures in it are some.
func wellFormed(t *testing.T, svg string) {
	t.Helper()
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
				if strings.Contains(a.Value, "NaN") || strings.Contains(a.Value, "Inf") ||
					strings.HasPrefix(a.Value, "-") {
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

func TestPicturesAreWellFormed(t *testing.T) {
	r := example()
	r.Workloads[0].Name, r.Workloads[0].About = "rr-64", "<&>"
	pictures := r.Pictures()
	if len(pictures) != 2 || pictures[0].Name != "cpu-tcp.svg" || pictures[1].Name != "memory.svg" {
		t.Fatalf("%d pictures", len(pictures))
	}
	nasty := draw("a < b & c", []group{{"<g>", []bar{{"&", 1, 0.5, 2}, {"<", math.Inf(1), math.NaN(), 1},
		{"n", 0, 0, 0}}}}, true)
	for _, svg := range []string{pictures[0].SVG, pictures[1].SVG, nasty, draw("", nil, false)} {
		wellFormed(t, svg)
	}
	for _, word := range []string{"haproxy", "2.00", "rr-64"} {
		if !strings.Contains(pictures[0].SVG, word) {
			t.Errorf("no %q in the picture", word)
		}
	}
}

// written returns the tables for the terminal, the short page and that of all tables.
func written(t *testing.T, r *Report) (table, page, tables string) {
	t.Helper()
	var all [3]bytes.Buffer
	err := errors.Join(r.WriteTable(&all[0]), r.WriteMarkdown(&all[1], []string{"cpu-tcp.svg"}), r.WriteTables(&all[2]))
	if err != nil {
		t.Fatal(err)
	}
	for i := range all {
		if strings.Contains(all[i].String(), "NaN") {
			t.Errorf("what was not measured is shown as NaN:\n%s", all[i].String())
		}
	}
	return all[0].String(), all[1].String(), all[2].String()
}

func hasAll(t *testing.T, name, text string, wanted ...string) {
	t.Helper()
	for _, want := range wanted {
		if !strings.Contains(text, want) {
			t.Errorf("%s: no %q in\n%s", name, want, text)
		}
	}
}

func TestTableAndPage(t *testing.T) {
	r := example()
	table, page, tables := written(t, r)
	hasAll(t, "table", table, "rr-64: requests", "10 .. 20", "2.00", "misses", "not measured", "NOT idle",
		"nginx failed")
	hasAll(t, "page", page, "![cpu-tcp](cpu-tcp.svg)", "2026-01-02", "NOT idle", "at least 7 rounds", "(tables.md)",
		"| rr-64 | cpu 15 us/request | cpu 0.5 of haproxy 3.2.26 (<= 0.5)",
		"**misses** cpu 0.8 of haproxy 3.2.26, nginx 1.30.6",
		"**not measured** p99", "5 of 11 targets miss, and 1 of these fail", "profiles.md")
	hasAll(t, "tables", tables, "| haproxy 3.2.26 | 30 | 20 .. 40 | 2.00 |", "nginx failed", "at least 7 rounds")
	for name, text := range map[string]string{"table": table, "page": page, "tables": tables} {
		hasAll(t, name, text, "2 cores", "Linux 6.1", "go1.26.8", "sluice 8f2f66fc (revision 8f2f66fc00, go1.26.8)",
			"HAProxy version 3.2.26-1", "nginx/1.30.6")
		if strings.Contains(text, "INVALID") || strings.Contains(text, "no whole run") {
			t.Errorf("%s of a whole, valid run:\n%s", name, text)
		}
	}
}

// TestPageIsOneScreen: the page of a whole run with all targets, some missed.
func TestPageIsOneScreen(t *testing.T) {
	r := &Report{Rounds: 7}
	for _, name := range []string{Ours, "haproxy", "nginx", "goroutines", "ipvs", DNAT, Queue, "direct"} {
		r.Systems = append(r.Systems, System{Name: name})
	}
	for _, target := range Targets {
		if !slices.Contains(r.Workloads, Workload{Name: target.Workload}) {
			r.Workloads = append(r.Workloads, Workload{Name: target.Workload})
		}
	}
	r.Compute(nil, Targets)
	_, page, _ := written(t, r)
	if lines := strings.Count(page, "\n"); lines > 60 {
		t.Errorf("%d lines:\n%s", lines, page)
	}
}

func TestInvalid(t *testing.T) {
	r := &Report{Rounds: 2, Systems: []System{{Ours, "1"}, {"nginx", "2"}},
		Workloads: []Workload{{"short", "connections"}},
		LeftOut:   make([]Target, 1)}
	var samples []Sample
	for round := range 2 {
		samples = append(samples, Sample{Round: round, Workload: "short", System: Ours, Metric: CPU, Value: 1},
			Sample{Round: round, Workload: "short", System: "nginx", Metric: CPU, Value: 2, Invalid: round == 0},
			Sample{Round: round, Workload: "short", System: Ours, Metric: Rate, Value: 1})
	}
	r.Compute(samples, []Target{{Workload: "short", Metric: CPU, Against: []string{"nginx"}, Limit: 1},
		{Workload: "short", Metric: CPU, Base: "short", Limit: 1}, {Workload: "short", Metric: Rate, Limit: 1}})
	for i, want := range []string{Invalid, Holds, Holds} {
		if got := r.Verdicts[i].State; got != want {
			t.Errorf("target %d: %s, want %s", i, got, want)
		}
	}
	table, page, tables := written(t, r)
	hasAll(t, "table", table, "nginx INVALID", "INVALID say nothing", "no whole run: 1 targets")
	hasAll(t, "page", page, "**invalid** cpu", "INVALID say nothing", "no whole run: 1 targets")
	hasAll(t, "tables", tables, "| nginx INVALID |", "| sluice |")
}

func TestLabels(t *testing.T) {
	for want, s := range map[string]System{
		"haproxy 3.2.26":      {"haproxy", "HAProxy version 3.2.26-1 2026/10/14 - https://haproxy.org/"},
		"nginx 1.30.6":        {"nginx", "nginx version: nginx/1.30.6"},
		"dnat 1.8.9":          {DNAT, "iptables v1.8.9 (nf_tables)"},
		"goroutines go1.26.8": {"goroutines", "io.Copy of go1.26.8, as kube-proxy's userspace mode"},
		"sluice 741f7a35":     {Ours, "sluice 741f7a35 (revision 741f7a353349, go1.26.8 linux/amd64)"},
		"before 0.1.0":        {"before", "sluice 0.1.0 (revision 741f7a353349, go1.26.8 linux/amd64)"},
		"direct":              {"direct", "routed by the node, without a proxy"},
	} {
		if got := s.Label(); got != want {
			t.Errorf("%q is labelled %q, want %q", s.Version, got, want)
		}
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
