package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-lb/sluice/bench/load"
	"github.com/sluice-lb/sluice/bench/report"
	"github.com/sluice-lb/sluice/bench/stats"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// options are the flags.
type options struct {
	sluice, workloads, systems, out, paired string
	also                                    []system // further builds of Sluice
	rounds                                  int
	duration                                time.Duration
	quick, force, list                      bool
}

func main() {
	if status, ok := load.Main(os.Args[1:]); ok {
		os.Exit(status)
	}
	var o options
	flag.StringVar(&o.sluice, "sluice", "bin/sluice", "`PATH` of the program to measure")
	flag.Func("also", "`NAME=PATH` of another build of Sluice to measure beside it, or of one with other flags: "+
		"NAME='PATH FLAG…'; may be repeated", o.addBuild)
	flag.StringVar(&o.workloads, "workloads", "",
		"comma-separated `PATTERNS` of workloads, such as rr-*; all by default")
	flag.StringVar(&o.systems, "systems", "", "comma-separated `PATTERNS` of systems; all by default. Sluice is "+
		"always one of them")
	flag.IntVar(&o.rounds, "rounds", 0, "`NUMBER` of interleaved rounds; 0 means 7, or 2 of a quick run. Unless "+
		"-workloads or -systems chooses, what no target is for takes part in each third only")
	flag.StringVar(&o.paired, "paired", "", "measure the builds of -sluice and -also side by side, each started "+
		"-rounds times (10), and nothing else, by this `WORKLOAD`: rr-NUMBER, or services-NUMBER, "+
		"of which several, comma-separated, measure each build once with every number; with -systems those and "+
		"-also, by the clock")
	flag.DurationVar(&o.duration, "duration", 0, "`TIME` of each run; 0 means 1.5 s, or 1 s of a quick run. wrk and "+
		"iperf3 take whole seconds")
	flag.StringVar(&o.out, "out", "", "`FOLDER` to write README.md and pictures to; none by default")
	flag.BoolVar(&o.quick, "quick", false, "measure the most telling workloads, for under 5 minutes")
	flag.BoolVar(&o.force, "force", false, "measure although the machine is not idle; the report says so")
	flag.BoolVar(&o.list, "list", false, "list workloads and systems, and exit")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "compare: unexpected argument %q\n", flag.Arg(0))
		os.Exit(2)
	}
	_, status, err := run(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
	}
	os.Exit(status)
}

// run measures, publishes, and returns what was found with the exit status.
func run(o options) (*report.Report, int, error) {
	if o.list {
		listAll()
		return nil, 0, nil
	}
	p, missing, err := o.plan()
	if err != nil {
		return nil, 2, err
	}
	var paired pairedWorkload
	if o.paired != "" {
		if paired, err = parsePaired(o.paired); err != nil {
			return nil, 2, err
		}
		if paired.clock = o.systems != ""; paired.clock && paired.conns == 0 {
			return nil, 2, errors.New("measure -systems side by side: want rr-NUMBER")
		}
		side, err := o.side()
		if err != nil {
			return nil, 2, err
		}
		if o.rounds == 1 || len(paired.twins(side)) == 1 {
			return nil, 2, errors.New("measure side by side: want two -rounds or more, and -also, " +
				"several -systems or several numbers of Services")
		}
	}
	if err := testbed.Reexec(); err != nil {
		return nil, 1, err
	}
	// Everything that is started ends with ctx, and hosts with this process.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if o.paired != "" {
		if _, err := o.pair(ctx, paired, os.Stdout); err != nil {
			return nil, 1, fmt.Errorf("measure builds side by side: %w", err)
		}
		return nil, 0, nil
	}
	for _, m := range missing {
		fmt.Println("left out:", m)
	}
	l, err := newLab(ctx, o.sluice)
	if err != nil {
		return nil, 1, err
	}
	defer l.close()
	rep := p.report(ctx, l)
	got, err := p.measure(ctx, l, o.force, os.Stdout)
	rep.Problems = append(missing, got.problems...)
	m := &rep.Machine
	m.Busy, m.Stolen = stats.Median(got.busy), stats.Median(got.stolen)
	_, busiest := stats.Spread(got.busy)
	m.Forced = o.force && busiest > maxBusy
	rep.Compute(got.samples, wanted(p.workloads))
	if len(got.samples) > 0 {
		if e := rep.WriteTable(os.Stdout); err == nil {
			err = e
		}
	}
	if err != nil {
		return nil, 1, fmt.Errorf("measure: %w; nothing was written", err)
	}
	if o.out != "" {
		if err := write(rep, o.out); err != nil {
			return nil, 1, err
		}
	}
	printMissed(rep)
	return rep, 0, nil
}

// printMissed says at the end what is missed.
func printMissed(rep *report.Report) {
	measured := 0
	for _, v := range rep.Verdicts {
		if v.State != report.NotMeasured {
			measured++
		}
	}
	switch {
	case measured < len(rep.Verdicts):
		fmt.Printf("%d of %d targets were measured, %d of them missed\n", measured, len(rep.Verdicts), rep.Missed())
	case rep.Missed() == 0:
		fmt.Println("every target holds")
	}
	for _, v := range rep.Verdicts {
		if v.State == report.Misses {
			fmt.Println(v)
		}
	}
}

// wanted returns the targets of the workloads that were to be measured.
func wanted(list []workload) []report.Target {
	var out []report.Target
	for _, t := range report.Targets {
		if slices.ContainsFunc(list, func(w workload) bool { return w.name == t.Workload }) {
			out = append(out, t)
		}
	}
	return out
}

// plan chooses what to measure, and names what is to be measured and the kernel cannot do. A program that is not
// installed is an error.
func (o options) plan() (p plan, missing []string, err error) {
	p.rounds, p.duration = 7, 1500*time.Millisecond
	if o.quick {
		p.rounds, p.duration = 2, time.Second
	}
	if o.rounds > 0 {
		p.rounds = o.rounds
	}
	if o.duration > 0 {
		p.duration = o.duration
	}
	if o.rounds < 0 || o.rounds > 1000 || o.duration < 0 || p.duration < 100*time.Millisecond ||
		p.duration > time.Hour {
		return p, nil, fmt.Errorf("measure %d rounds of %v: want 1 to 1000 of 100 ms to 1 h", o.rounds, o.duration)
	}
	p.thin = o.workloads == "" && o.systems == ""
	programs := slices.Clone(labPrograms)
	for _, w := range workloads() {
		chosen, err := matches(o.workloads, w.name)
		if err != nil {
			return p, nil, err
		}
		if !chosen || o.workloads == "" && (o.quick && !w.quick || w.asked) {
			continue
		}
		programs = append(programs, w.programs()...)
		p.workloads = append(p.workloads, w)
	}
	for _, s := range slices.Concat(systems, o.also) {
		chosen, err := matches(o.systems, s.name)
		if err != nil {
			return p, nil, err
		}
		if !chosen && s.name != report.Ours && s.build == "" {
			continue
		}
		if why := s.hostLacks(); why != "" {
			missing = append(missing, fmt.Sprintf("system %s: %s", s.name, why))
			continue
		}
		if s.needs != "" {
			programs = append(programs, s.needs)
		}
		p.systems = append(p.systems, s)
	}
	if len(p.workloads) == 0 {
		return p, missing, fmt.Errorf("measure workloads %q: there is none, or none can be: %s", o.workloads,
			strings.Join(missing, "; "))
	}
	return p, missing, notInstalled(programs)
}

// addBuild takes the value of -also.
func (o *options) addBuild(value string) error {
	name, rest, ok := strings.Cut(value, "=")
	command := strings.Fields(rest)
	if !ok || name == "" || len(command) == 0 {
		return errors.New("want NAME=PATH, or NAME='PATH FLAG…'")
	}
	if slices.ContainsFunc(slices.Concat(systems, o.also), func(s system) bool { return s.name == name }) {
		return fmt.Errorf("there is a system %q already", name)
	}
	path, err := filepath.Abs(command[0])
	if err != nil {
		return err
	}
	if _, err := os.Stat(path); err != nil {
		return err
	}
	o.also = append(o.also, system{name: name, build: path, flags: command[1:], balances: true,
		say: []string{path, "--version"},
		start: func(ctx context.Context, l *lab) (*running, error) {
			return startSluice(ctx, l, name, path, command[1:]...)
		}})
	return nil
}

// matches reports whether a name matches one of the comma-separated patterns, of
// which none means any.
func matches(patterns, name string) (bool, error) {
	if patterns == "" {
		return true, nil
	}
	for pattern := range strings.SplitSeq(patterns, ",") {
		ok, err := path.Match(strings.TrimSpace(pattern), name)
		if err != nil {
			return false, fmt.Errorf("use pattern %q: %w", pattern, err)
		}
		if ok {
			return true, nil
		}
	}
	return false, nil
}

// report starts a report.
func (p plan) report(ctx context.Context, l *lab) *report.Report {
	rep := &report.Report{
		Date: time.Now().UTC().Truncate(time.Second), Command: "bin/compare " + strings.Join(os.Args[1:],
			" "),
		Machine: describeMachine(l.cores), Rounds: p.rounds, Seconds: p.duration.Seconds(),
	}
	for _, s := range p.systems {
		rep.Systems = append(rep.Systems, report.System{Name: s.name, Version: s.version(ctx, l.sluice)})
	}
	for _, w := range p.workloads {
		rep.Workloads = append(rep.Workloads, report.Workload{Name: w.name, About: w.about})
	}
	return rep
}

// write writes all that is published.
func write(rep *report.Report, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	files := make(map[string]string)
	for _, p := range rep.Pictures() {
		files[p.Name] = p.SVG
	}
	var page strings.Builder
	if err := rep.WriteMarkdown(&page, slices.Sorted(maps.Keys(files))); err != nil {
		return err
	}
	files["README.md"] = page.String()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func listAll() {
	fmt.Println("workloads (q: part of a quick run, -: only if -workloads names it):")
	for _, w := range workloads() {
		mark := " "
		switch {
		case w.quick:
			mark = "q"
		case w.asked:
			mark = "-"
		}
		fmt.Printf(" %s %-18s %s\n", mark, w.name, w.about)
	}
	fmt.Println("systems:")
	for _, s := range systems {
		fmt.Printf("   %-18s %s\n", s.name, s.hostLacks())
	}
}
