package report

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/sluice-lb/sluice/bench/stats"
)

// Schema is the version of the JSON.
const Schema = 1

// Ours is the system that all are compared with.
const Ours = "sluice"

// Metrics that have a meaning of their own here. Further ones may be measured.
const (
	CPU    = "cpu"
	Core   = "core"
	Rate   = "rate"
	P50    = "p50"
	P99    = "p99"
	P999   = "p99.9"
	Errors = "errors"
	Lost   = "lost"
	Memory = "memory"

	Calls      = "calls"  // system calls per operation
	CallPrefix = "calls " // and of those one, by name
)

// Value is a figure; NaN, which JSON cannot say, means that there is none and is null.
type Value float64

// MarshalJSON writes four significant digits: more would be noise.
func (v Value) MarshalJSON() ([]byte, error) {
	if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
		return []byte("null"), nil
	}
	return json.Marshal(significant(float64(v)))
}

// UnmarshalJSON reads what MarshalJSON writes.
func (v *Value) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		*v = Value(math.NaN())
		return nil
	}
	return json.Unmarshal(b, (*float64)(v))
}

// significant rounds to four digits, and whole numbers not at all.
func significant(v float64) float64 {
	if v == 0 || v == math.Trunc(v) {
		return v
	}
	scale := math.Pow(10, 3-math.Floor(math.Log10(math.Abs(v))))
	return math.Round(v*scale) / scale
}

// Machine is what the figures depend on.
type Machine struct {
	CPU      string `json:"cpu"`
	CPUs     int    `json:"cpus"`
	MemoryMB int    `json:"memory_mb"`
	Kernel   string `json:"kernel"`
	Proxy    string `json:"proxy_core"`
	Load     string `json:"load_cores"`
	Busy     Value  `json:"busy_before"`   // share of all cores' time before a round, the median
	Stolen   Value  `json:"stolen"`        // share that the hypervisor gave to other machines in a round, the median
	Forced   bool   `json:"measured_busy"` // measured although the machine was not idle

	BusyByRound   []Value `json:"busy_by_round"`
	StolenByRound []Value `json:"stolen_by_round"`
}

// System is one of those that were measured.
type System struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// Workload is what was measured.
type Workload struct {
	Name  string `json:"name"`
	About string `json:"about"`
}

// Sample is one figure of one run.
type Sample struct {
	Round                          int // from 0
	Workload, System, Metric, Unit string
	Value                          float64
}

// Result is what all rounds say about one metric.
type Result struct {
	Workload string  `json:"workload"`
	System   string  `json:"system"`
	Metric   string  `json:"metric"`
	Unit     string  `json:"unit"`
	Values   []Value `json:"values"`
	Median   Value   `json:"median"`
	Min      Value   `json:"min"`
	Max      Value   `json:"max"`
	Ratio    Value   `json:"ratio"`
	RatioMin Value   `json:"ratio_min"`
	RatioMax Value   `json:"ratio_max"`
}

// Report is one whole run of the measurements. See the package comment.
type Report struct {
	Schema    int        `json:"schema"`
	Date      time.Time  `json:"date"`
	Command   string     `json:"command"`
	Machine   Machine    `json:"machine"`
	Systems   []System   `json:"systems"`
	Workloads []Workload `json:"workloads"`
	Rounds    int        `json:"rounds"`
	Seconds   Value      `json:"seconds"`
	Results   []Result   `json:"results"`
	Verdicts  []Verdict  `json:"verdicts"`
	Problems  []string   `json:"problems"`
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
			r.Results[i].Values[s.Round] = Value(s.Value)
		}
	}
	for i := range r.Results {
		res := &r.Results[i]
		values := floats(res.Values)
		res.Median = Value(stats.Median(values))
		res.Min, res.Max = spread(values)
		res.Ratio, res.RatioMin, res.RatioMax = Value(math.NaN()), Value(math.NaN()), Value(math.NaN())
		if j, ok := index[key{res.Workload, Ours, res.Metric}]; ok {
			ratios := stats.Ratios(values, floats(r.Results[j].Values))
			res.Ratio = Value(stats.Median(ratios))
			res.RatioMin, res.RatioMax = spread(ratios)
		}
	}
	r.Verdicts = judge(r, targets)
}

func spread(values []float64) (Value, Value) {
	least, greatest := stats.Spread(values)
	return Value(least), Value(greatest)
}

func none(n int) []Value {
	v := make([]Value, n)
	for i := range v {
		v[i] = Value(math.NaN())
	}
	return v
}

func floats(values []Value) []float64 {
	out := make([]float64, len(values))
	for i, v := range values {
		out[i] = float64(v)
	}
	return out
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

// Write writes the report as JSON.
func (r *Report) Write(w io.Writer) error {
	r.Schema = Schema
	enc := json.NewEncoder(w)
	enc.SetIndent("", " ")
	enc.SetEscapeHTML(false)
	return enc.Encode(r)
}

// Read reads what Write has written. It refuses another schema and fields that it
// does not know.
func Read(from io.Reader) (*Report, error) {
	dec := json.NewDecoder(from)
	dec.DisallowUnknownFields()
	r := new(Report)
	if err := dec.Decode(r); err != nil {
		return nil, fmt.Errorf("read report: %w", err)
	}
	if r.Schema != Schema {
		return nil, fmt.Errorf("read report: schema %d, want %d", r.Schema, Schema)
	}
	return r, nil
}
