package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/bench/report"
	"github.com/sluice-lb/sluice/bench/stats"
)

// drawn are the figures that become curves over the number of Services, by the names of their files.
var drawn = []struct{ file, name string }{
	{"control-served.svg", "served s"}, {"control-change.svg", "change p50 ms"},
	{"control-cpu.svg", "CPU a change ms"}, {"control-memory.svg", "resident MiB"},
}

// curves has the lines of each of them.
type curves map[string][]report.Line

// add adds the medians of a table of n Services, without those that are invalid.
func (c *curves) add(n int, t *table) {
	if *c == nil {
		*c = make(curves)
	}
	for _, s := range t.systems {
		for _, d := range drawn {
			values := t.values[[2]string{s, d.name}]
			if values == nil || slices.Contains(t.invalid, s) {
				continue
			}
			lines := (*c)[d.name]
			i := slices.IndexFunc(lines, func(l report.Line) bool { return l.Name == s })
			if i < 0 {
				i, lines = len(lines), append(lines, report.Line{Name: s})
			}
			lines[i].Points = append(lines[i].Points, report.Point{X: float64(n), Y: stats.Median(values)})
			(*c)[d.name] = lines
		}
	}
}

// pictures draws them.
func (c curves) pictures(endpoints int) (all []report.Picture) {
	x := fmt.Sprintf("Services of %d endpoints, from an API server", endpoints)
	for _, d := range drawn {
		if svg := report.Curve(d.name+", over the number of Services", x, d.name, c[d.name]); svg != "" {
			all = append(all, report.Picture{Name: d.file, SVG: svg})
		}
	}
	return all
}

// TestScaleCurves: only what was measured, and is valid, is drawn.
func TestScaleCurves(t *testing.T) {
	var c curves
	for _, n := range []int{100, 1000} {
		one := table{rounds: 1}
		one.add(0, "sluice 1", []figure{{"served s", float64(n)}, {"resident MiB", 30}})
		one.add(0, "kube-proxy-nftables 1.36.3", []figure{{"served s", 2}})
		one.add(0, "sluice-queue 1", []figure{{"served s", 3}})
		one.invalid = []string{"sluice-queue 1"}
		c.add(n, &one)
	}
	pictures := c.pictures(10)
	if len(pictures) != 2 || pictures[0].Name != "control-served.svg" || pictures[1].Name != "control-memory.svg" {
		t.Fatalf("%d pictures", len(pictures))
	}
	svg := pictures[0].SVG
	for _, want := range []string{"sluice 1: 1000", "kube-proxy-nftables 1.36.3: 2", "Services of 10 endpoints"} {
		if !strings.Contains(svg, want) {
			t.Errorf("no %q in\n%s", want, svg)
		}
	}
	if strings.Contains(svg, "queue") {
		t.Errorf("figures that are invalid are drawn:\n%s", svg)
	}
}

// TestChooseScaled: a system that does not exist is an error.
func TestChooseScaled(t *testing.T) {
	if got, err := choose("*nftables"); err != nil || len(got) != 2 || !got["kube-proxy-nftables"] {
		t.Errorf("%v, %v", got, err)
	}
	for _, wrong := range []string{"", "sluice,kubeproxy", "["} {
		if got, err := choose(wrong); err == nil {
			t.Errorf("%q chose %v", wrong, got)
		}
	}
}
