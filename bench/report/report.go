package report

import (
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/sluice-lb/sluice/bench/stats"
)

// Ours is the system that all are compared with.
const Ours = "sluice"

// Queue is Sluice where the kernel forwards what it chooses, and DNAT the kernel alone.
const (
	Queue = "queue"
	DNAT  = "dnat"
)

// Metrics that have a meaning of their own here. Further ones may be measured.
const (
	CPU    = "cpu"
	Core   = "core"
	All    = "machine"
	Rate   = "rate"
	P50    = "p50"
	P99    = "p99"
	P999   = "p99.9"
	Errors = "errors"
	Lost   = "lost"
	Memory = "memory"

	// Path queue to DNAT, which both run, by turns: the rate, and what the machine spends on each.
	ByTurns        = "by turns"
	MachineByTurns = "machine by turns"
)

// Machine is what the figures depend on.
type Machine struct {
	CPU      string
	CPUs     int
	MemoryMB int
	Kernel   string
	Go       string // that the load, the goroutines and Sluice are compiled by
	Proxy    string
	Load     string
	Busy     float64 // share of all cores' time before a round, the median
	Stolen   float64 // share that the hypervisor gave to other machines in a round, the median
	Forced   bool    // measured although the machine was not idle
}

// System is one of those that were measured.
type System struct {
	Name    string
	Version string // what the program itself says
}

// number is the part of a version that says which one it is.
var number = regexp.MustCompile(`(?:go)?[0-9]+(?:\.[0-9]+)+`)

// Label names the system with its version, as every row of a table does: a row may be quoted alone.
func (s System) Label() string {
	version := number.FindString(s.Version)
	if fields := strings.Fields(s.Version); len(fields) > 1 && fields[0] == Ours {
		version = fields[1]
	}
	return strings.TrimSpace(s.Name + " " + version)
}

// Workload is what was measured.
type Workload struct {
	Name  string
	About string
}

// Sample is one figure of one run.
type Sample struct {
	Round                          int // from 0
	Workload, System, Metric, Unit string
	Value                          float64
	Invalid                        bool // something else than the system decided it
}

// Result is what all rounds say about one metric.
type Result struct {
	Workload string
	System   string
	Metric   string
	Unit     string
	Values   []float64
	Median   float64
	Min      float64
	Max      float64
	Ratio    float64
	RatioMin float64
	RatioMax float64
	Invalid  bool // in any round
}

// Report is one whole run of the measurements. See the package comment.
type Report struct {
	Date      time.Time
	Command   string
	Machine   Machine
	Systems   []System
	Workloads []Workload
	Rounds    int
	Seconds   float64
	Results   []Result
	Verdicts  []Verdict
	Problems  []string
	LeftOut   []Target // that the run was not to judge
}

// Compute fills in the results, in the order in which they first appear among the
// samples, and the verdicts on them. Results of an earlier call are dropped.
func (r *Report) Compute(samples []Sample, targets []Target) {
	r.Results = nil
	type key struct{ workload, system, metric string }
	index := make(map[key]int)
	for _, s := range samples {
		k := key{s.Workload, s.System, s.Metric}
		i, ok := index[k]
		if !ok {
			i = len(r.Results)
			index[k] = i
			r.Results = append(r.Results, Result{Workload: s.Workload, System: s.System, Metric: s.Metric, Unit: s.Unit,
				Values: none(r.Rounds)})
		}
		if s.Round < r.Rounds {
			r.Results[i].Values[s.Round] = s.Value
			r.Results[i].Invalid = r.Results[i].Invalid || s.Invalid
		}
	}
	for i := range r.Results {
		res := &r.Results[i]
		res.Median = stats.Median(res.Values)
		res.Min, res.Max = stats.Spread(res.Values)
		ratios := none(1)
		if j, ok := index[key{res.Workload, Ours, res.Metric}]; ok {
			ratios = stats.Ratios(res.Values, r.Results[j].Values)
		}
		res.Ratio = stats.Median(ratios)
		res.RatioMin, res.RatioMax = stats.Spread(ratios)
	}
	r.Verdicts = judge(r, targets)
}

// none returns n figures that are not known yet.
func none(n int) []float64 { return slices.Repeat([]float64{math.NaN()}, n) }

// label returns a system's name with its version.
func (r *Report) label(system string) string {
	for _, s := range r.Systems {
		if s.Name == system {
			return s.Label()
		}
	}
	return system
}

// find returns a result, or nil.
func (r *Report) find(workload, system, metric string) *Result {
	for i := range r.Results {
		if res := &r.Results[i]; res.Workload == workload && res.System == system && res.Metric == metric {
			return res
		}
	}
	return nil
}
