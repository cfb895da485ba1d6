package report

import (
	"fmt"
	"io"
	"strings"
)

// TablesFile is the page with all tables, which the short page leads to.
const TablesFile = "tables.md"

// WriteMarkdown writes the short page of a report: what was measured, pictures, which have the given file names, and
// the targets.
func (r *Report) WriteMarkdown(w io.Writer, pictures []string) error {
	var b strings.Builder
	r.open(&b, "Measurements")
	fmt.Fprintf(&b, "\nAll figures: [%s](%s).\n", TablesFile, TablesFile)
	if len(pictures) > 0 {
		b.WriteString("\n")
	}
	for _, p := range pictures {
		fmt.Fprintf(&b, "![%s](%s)\n", strings.TrimSuffix(p, ".svg"), p)
	}
	r.writeTargets(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

// open writes what both pages begin with.
func (r *Report) open(b *strings.Builder, title string) {
	fmt.Fprintf(b, "# %s\n\nWritten by `%s`; do not edit.\n", title, r.Command)
	b.WriteString("The package comment of [bench/report](../report/doc.go) explains the metrics.\n\n")
	if c := r.caution(); c != "" {
		fmt.Fprintf(b, "**%s**\n\n", c)
	}
	for _, fact := range r.facts() {
		fmt.Fprintf(b, "- %s\n", fact)
	}
}

// writeTargets writes a row for each workload with targets.
func (r *Report) writeTargets(b *strings.Builder) {
	if len(r.Verdicts) == 0 {
		return
	}
	missed, failed := r.Missed()
	fmt.Fprintf(b, "\n## Targets\n\nA figure beside a peer is Sluice's divided by the peer's of the same round, the "+
		"median over the rounds. %d of %d targets miss, and %d of these fail what must hold.\n\n", missed,
		len(r.Verdicts), failed)
	b.WriteString("| workload | Sluice | holds | does not hold |\n|---|---|---|---|\n")
	for _, wl := range r.Workloads {
		var good, bad []string
		for _, v := range r.Verdicts {
			switch {
			case v.Workload != wl.Name:
			case v.State == Holds:
				good = append(good, v.cell())
			default:
				bad = append(bad, v.cell())
			}
		}
		if len(good)+len(bad) > 0 {
			fmt.Fprintf(b, "| %s | %s | %s | %s |\n", wl.Name, r.first(wl.Name), strings.Join(good, "; "),
				strings.Join(bad, "; "))
		}
	}
	if missed > 0 {
		b.WriteString("\nWhy targets are missed: [profiles.md](profiles.md).\n")
	}
}

// first returns Sluice's first figure of a workload, which is what that is for.
func (r *Report) first(workload string) string {
	for _, res := range r.Results {
		if res.Workload == workload && res.System == Ours {
			return strings.TrimSpace(res.Metric + " " + figure(res.Median) + " " + res.Unit)
		}
	}
	return "-"
}

// WriteTables writes the page with all tables.
func (r *Report) WriteTables(w io.Writer) error {
	var b strings.Builder
	r.open(&b, "Tables")
	b.WriteString("\n`x` is the system's figure divided by Sluice's of the same round, the median over the " +
		"rounds.\n`cpu` is the processor time of the proxy's process, `core` the time its core was not idle, " +
		"`machine` the time of all cores.\n")
	for _, wl := range r.Workloads {
		g := r.grid(wl.Name)
		if len(g.rows) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n## %s: %s\n\n| %s |\n|%s\n", wl.Name, wl.About, strings.Join(g.head, " | "),
			strings.Repeat("---|", len(g.head)))
		for _, row := range g.rows {
			fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
		}
	}
	if len(r.Problems) > 0 {
		b.WriteString("\n## Problems\n\n")
		for _, p := range r.Problems {
			fmt.Fprintf(&b, "- %s\n", strings.ReplaceAll(p, "\n", " "))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
