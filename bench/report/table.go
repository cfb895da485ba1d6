package report

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// figure writes a value with as many digits as say something.
func figure(v float64) string {
	switch {
	case math.IsNaN(v):
		return "-"
	case v == math.Trunc(v) || math.Abs(v) >= 1000:
		return strconv.FormatFloat(math.Round(v), 'f', -1, 64)
	}
	rounded, _ := strconv.ParseFloat(strconv.FormatFloat(v, 'e', 2, 64), 64) // it was just written
	return strconv.FormatFloat(rounded, 'f', -1, 64)
}

// grid is the table of one workload: a row for each system, a column for each metric.
type grid struct {
	head []string
	rows [][]string
}

// grid makes the table of a workload. The first metric, which is what the workload is
// for, is shown with its spread; all but counts are shown with the ratio to Sluice's.
func (r *Report) grid(workload string) grid {
	var metrics, systems []string
	for _, res := range r.Results {
		if res.Workload != workload {
			continue
		}
		if !slices.Contains(metrics, res.Metric) {
			metrics = append(metrics, res.Metric)
		}
		if !slices.Contains(systems, res.System) {
			systems = append(systems, res.System)
		}
	}
	g := grid{head: []string{"system"}}
	for i, m := range metrics {
		g.head = append(g.head, strings.TrimSpace(m+" "+r.unit(workload, m)))
		if i == 0 {
			g.head = append(g.head, "from .. to")
		}
		if ratioed(m) && len(systems) > 1 {
			g.head = append(g.head, "x")
		}
	}
	for _, s := range systems {
		row := []string{r.label(s)}
		for i, m := range metrics {
			res := r.find(workload, s, m)
			if res == nil {
				nan := math.NaN()
				res = &Result{Median: nan, Min: nan, Max: nan, Ratio: nan}
			}
			row = append(row, figure(res.Median))
			if i == 0 {
				row = append(row, figure(res.Min)+" .. "+figure(res.Max))
			}
			if ratioed(m) && len(systems) > 1 {
				row = append(row, times(res.Ratio))
			}
		}
		if slices.ContainsFunc(r.Results, func(res Result) bool {
			return res.Invalid && res.Workload == workload && res.System == s
		}) {
			row[0] += " INVALID"
		}
		g.rows = append(g.rows, row)
	}
	return g
}

// ratioed reports whether a ratio says anything about a metric, and deserves a column.
func ratioed(metric string) bool {
	return metric == CPU || metric == Memory || metric == P99 || metric == Rate
}

func times(v float64) string {
	if math.IsNaN(v) {
		return "-"
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

func (r *Report) unit(workload, metric string) string {
	for _, res := range r.Results {
		if res.Workload == workload && res.Metric == metric {
			return res.Unit
		}
	}
	return ""
}

// caution says what a reader must know before the figures.
func (r *Report) caution() string {
	m := r.Machine
	var words []string
	if slices.ContainsFunc(r.Results, func(res Result) bool { return res.Invalid }) {
		words = append(words, "Figures of rows with INVALID say nothing: see the problems.")
	}
	if len(r.LeftOut) > 0 {
		words = append(words, fmt.Sprintf("This is no whole run: %d targets are left out.", len(r.LeftOut)))
	}
	if m.Forced {
		words = append(words, fmt.Sprintf("The machine was NOT idle before the run (%s %% busy): ratios are rough, "+
			"and latencies and rates mean little.", figure(m.Busy*100)))
	}
	if m.Stolen > 0.01 {
		words = append(words, fmt.Sprintf("The hypervisor gave %s %% of the time to other machines during the run.",
			figure(m.Stolen*100)))
	}
	if r.Rounds < 7 {
		words = append(words, fmt.Sprintf("Targets are for at least 7 rounds; these are %d.", r.Rounds))
	}
	return strings.Join(words, " ")
}

// Subjects say what was measured: the machine, and each system with its version.
func (r *Report) Subjects() []string {
	m := r.Machine
	all := []string{
		fmt.Sprintf("machine: %s, %d cores, %d MB, Linux %s, %s", m.CPU, m.CPUs, m.MemoryMB, m.Kernel, m.Go),
		fmt.Sprintf("proxy on core %s, load and servers on %s", m.Proxy, m.Load),
	}
	for _, s := range r.Systems {
		all = append(all, s.Name+": "+s.Version)
	}
	return all
}

// facts say what the figures are of.
func (r *Report) facts() []string {
	return append([]string{
		"date: " + r.Date.UTC().Format("2006-01-02 15:04 MST"),
		fmt.Sprintf("%d interleaved rounds of %s s; of some workloads fewer", r.Rounds, figure(r.Seconds)),
		fmt.Sprintf("busy before the run: %s %%; stolen by the hypervisor during it: %s %%", figure(r.Machine.Busy*100),
			figure(r.Machine.Stolen*100)),
	}, r.Subjects()...)
}

// WriteTable writes what a person wants to see at the end of a run.
func (r *Report) WriteTable(w io.Writer) error {
	fmt.Fprintf(w, "\n%s\n", strings.Join(r.facts(), "\n"))
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, wl := range r.Workloads {
		g := r.grid(wl.Name)
		if len(g.rows) == 0 {
			continue
		}
		fmt.Fprintf(tw, "\n%s: %s\n", wl.Name, wl.About)
		fmt.Fprintf(tw, "%s\t\n", strings.Join(g.head, "\t"))
		for _, row := range g.rows {
			fmt.Fprintf(tw, "%s\t\n", strings.Join(row, "\t"))
		}
		if err := tw.Flush(); err != nil {
			return err
		}
	}
	fmt.Fprintf(tw, "\nTargets (x is the system's figure divided by the other's of the same round, the median over %d "+
		"rounds):\n", r.Rounds)
	for _, v := range r.Verdicts {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\tis %s\t%s\t\n", v.Workload, v.System, v.Metric, v.Against, v.limit(),
			figure(v.Got), v.State)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	for _, p := range r.Problems {
		fmt.Fprintln(w, "problem:", p)
	}
	if c := r.caution(); c != "" {
		fmt.Fprintln(w, "caution:", c)
	}
	return nil
}
