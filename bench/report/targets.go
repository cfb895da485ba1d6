package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/sluice-lb/sluice/bench/stats"
)

// Target is a figure that Sluice must reach. Without anything to compare with, Limit
// is in the metric's own unit.
type Target struct {
	Workload string
	System   string // empty: Ours
	Metric   string
	Against  []string // systems: the ratio to each of them must keep the limit
	Base     string   // a workload: the ratio to Sluice's own figure there must
	Limit    float64
	Must     float64 // the limit that binds if Limit is an aim: a figure above it fails; 0: none
	Least    bool    // the figure is to be Limit at least, else at most
}

// ours returns the system whose figure it is.
func (t Target) ours() string { return cmp.Or(t.System, Ours) }

// Systems returns the systems whose figures it compares.
func (t Target) Systems() []string { return append([]string{t.ours()}, t.Against...) }

// String names a target.
func (t Target) String() string {
	words := t.Workload + " " + t.Metric
	if against := slices.Concat(t.Against, strings.Fields(t.Base)); len(against) > 0 {
		words += " against " + strings.Join(against, ", ")
	}
	return words
}

// Targets are what the project has set itself, for medians of at least 7 rounds on
// an idle machine.
var Targets = slices.Concat(peerTargets(), []Target{
	{Workload: "rr-64", Metric: P99, Against: []string{"haproxy", "nginx"}, Limit: 1.00},
	{Workload: "rr-1000", Metric: P99, Against: []string{"haproxy"}, Limit: 1.00},
	{Workload: "rr-1000", Metric: CPU, Against: []string{"goroutines"}, Limit: 0.60},
	{Workload: "rr-64-turns", Metric: ByTurns, Limit: 0.97, Least: true},
	{Workload: "short-turns", Metric: ByTurns, Limit: 0.90, Least: true},
	{Workload: "short-turns", Metric: MachineByTurns, Limit: 1.25},
	{Workload: "udp-bulk-8", Metric: CPU, Against: []string{"goroutines"}, Limit: 0.75},
	{Workload: "udp-bulk-64", Metric: CPU, Against: []string{"goroutines"}, Limit: 0.75},
	{Workload: "idle", Metric: Memory, Limit: 1024},
	{Workload: "services-10000", Metric: "first byte", Base: "services-10", Limit: 1.10},
	{Workload: "services-10000", Metric: "change p99", Limit: 10},
	{Workload: "services-10000", Metric: "rules", Base: "services-10", Limit: 1.00},
	{Workload: "services-10000", Metric: "ready", Limit: 2000},
	{Workload: "services-10000", Metric: "resident", Limit: 250},
	{Workload: "services-win-2000", Metric: "ready", Limit: 3000},
	{Workload: "services-win-2000", Metric: "change p99", Limit: 50},
	{Workload: "services-win-udp-2000", Metric: "ready", Limit: 3000},
	{Workload: "services-win-udp-2000", Metric: "change p99", Limit: 50},
})

// Targeted reports whether a target is for a workload, or compares with it.
func Targeted(workload string) bool {
	return slices.ContainsFunc(Targets, func(t Target) bool { return t.Workload == workload || t.Base == workload })
}

// Compared reports whether a target of a workload is for a system, or compares with it.
func Compared(workload, system string) bool {
	return slices.ContainsFunc(Targets, func(t Target) bool {
		return t.Workload == workload && slices.Contains(t.Systems(), system)
	})
}

// peerTargets compare with the better of today's peers: no workload may take more than 1.05 of its processor time,
// no DNS question more than it, and no datagram may be lost.
func peerTargets() (out []Target) {
	tcp := func(aim float64, workloads ...string) {
		for _, w := range workloads {
			out = append(out, Target{Workload: w, Metric: CPU, Against: []string{"haproxy", "nginx"}, Limit: aim,
				Must: 1.05})
		}
	}
	udp := func(aim, must float64, workloads ...string) {
		for _, w := range workloads {
			cost := Target{Workload: w, Metric: CPU, Against: []string{"nginx"}, Limit: aim, Must: must}
			out = append(out, cost, Target{Workload: w, Metric: Lost})
		}
	}
	tcp(0.95, "rr-1", "rr-64", "rr-1000", "short")
	tcp(0.85, "mixed", "bulk-1", "bulk-1-down", "bulk-1-both", "bulk-8", "bulk-8-down", "bulk-8-both")
	udp(0.95, 1.05, "udp-1", "udp-64", "udp-1000", "udp-bulk-8", "udp-bulk-64")
	udp(0.8, 1, "dns")
	return out
}

// States of a verdict.
const (
	Holds       = "holds"
	Misses      = "misses"
	Fails       = "fails" // above Must
	NotMeasured = "not measured"
	Invalid     = "invalid"
)

// Verdict says whether a target holds.
type Verdict struct {
	Workload string
	System   string
	Metric   string
	Against  string // systems, another workload, or the unit of an absolute limit
	Ratio    bool   // Got is one to what Against names
	Limit    float64
	Must     float64
	Least    bool    // Limit is the least, else the most
	Got      float64 // the ratio, or the figure; of several systems the worst
	State    string
}

// limit returns it in words.
func (v Verdict) limit() string {
	if v.Least {
		return ">= " + figure(v.Limit)
	}
	if v.Must != 0 {
		return "<= " + figure(v.Limit) + ", must " + figure(v.Must)
	}
	return "<= " + figure(v.Limit)
}

func judge(r *Report, targets []Target) []Verdict {
	var out []Verdict
	for _, t := range targets {
		v := Verdict{Workload: t.Workload, System: t.ours(), Metric: t.Metric, Limit: t.Limit, Must: t.Must,
			Least: t.Least, Ratio: t.Base != "" || len(t.Against) > 0, State: NotMeasured}
		v.Got, v.Against = t.measure(r)
		switch {
		case math.IsNaN(v.Got):
		case t.invalid(r):
			v.State = Invalid
		case v.Got == t.Limit, v.Got > t.Limit == t.Least:
			v.State = Holds
		case t.Must != 0 && v.Got > t.Must:
			v.State = Fails
		default:
			v.State = Misses
		}
		out = append(out, v)
	}
	return out
}

// invalid reports whether one of the figures that it compares is.
func (t Target) invalid(r *Report) bool {
	is := func(workload, system string) bool {
		res := r.find(workload, system, t.Metric)
		return res != nil && res.Invalid
	}
	return t.Base != "" && is(t.Base, Ours) ||
		slices.ContainsFunc(t.Systems(), func(system string) bool { return is(t.Workload, system) })
}

// measure returns the figure that the limit is for, or NaN, and what it is compared with.
func (t Target) measure(r *Report) (got float64, against string) {
	got = math.NaN()
	ours := r.find(t.Workload, t.ours(), t.Metric)
	switch {
	case t.Base != "":
		against = "Sluice in " + t.Base
		if base := r.find(t.Base, Ours, t.Metric); ours != nil && base != nil {
			got = stats.Median(stats.Ratios(ours.Values, base.Values))
		}
	case len(t.Against) > 0:
		var labels []string
		for _, system := range t.Against {
			labels = append(labels, r.label(system))
		}
		against = strings.Join(labels, ", ")
		for _, system := range t.Against {
			theirs := r.find(t.Workload, system, t.Metric)
			if ours == nil || theirs == nil {
				return math.NaN(), against // all of them, or no verdict
			}
			ratio := stats.Median(stats.Ratios(ours.Values, theirs.Values))
			if math.IsNaN(ratio) {
				return ratio, against
			}
			if math.IsNaN(got) || ratio > got != t.Least {
				got = ratio
			}
		}
	case ours != nil && t.Metric == Lost:
		_, got = stats.Spread(ours.Values) // none in any round
		against = "in the worst round"
	case ours != nil:
		got, against = ours.Median, ours.Unit
	}
	return got, against
}

// Missed returns how many targets were measured and do not hold, and how many of those fail.
func (r *Report) Missed() (missed, failed int) {
	for _, v := range r.Verdicts {
		switch v.State {
		case Fails:
			failed++
			missed++
		case Misses:
			missed++
		}
	}
	return missed, failed
}

// String words a verdict.
func (v Verdict) String() string {
	return fmt.Sprintf("%s: %s of %s in %s is %s, %s (%s)", v.State, v.Metric, v.System, v.Workload, figure(v.Got),
		v.limit(), v.Against)
}

// cell is a verdict among others of its workload.
func (v Verdict) cell() string {
	of := ""
	if v.Ratio {
		of = "of "
	}
	words := fmt.Sprintf("%s %s %s%s (%s)", v.Metric, figure(v.Got), of, v.Against, v.limit())
	if v.System != Ours {
		words = v.System + ": " + words
	}
	if v.State != Holds {
		words = "**" + v.State + "** " + words
	}
	return words
}
