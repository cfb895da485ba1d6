package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
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
	if err := usePeers(); err != nil {
		return nil, 1, err
	}
	var err error
	if o.sluice, err = findSluice(o.sluice); err != nil {
		return nil, 1, err
	}
	if o.paired != "" {
		return o.runPaired()
	}
	p, err := o.plan()
	if err != nil {
		return nil, 2, err
	}
	if err := testbed.Reexec(); err != nil {
		return nil, 1, err
	}
	ctx, stop := interruptible()
	defer stop()
	for _, m := range p.lacking {
		fmt.Println("left out:", m)
	}
	l, err := newLab(ctx, o.sluice)
	if err != nil {
		return nil, 1, err
	}
	defer l.close()
	rep, err := p.report(ctx, l.cores, l.sluice)
	if err != nil {
		return nil, 1, err
	}
	got, err := p.measure(ctx, l, o.force, os.Stdout)
	rep.Problems = append(p.lacking, got.problems...)
	m := &rep.Machine
	m.Busy, m.Stolen = stats.Median(got.busy), stats.Median(got.stolen)
	_, busiest := stats.Spread(got.busy)
	m.Forced = o.force && busiest > maxBusy
	covered, left := p.targets()
	rep.LeftOut = left
	rep.Compute(got.samples, covered)
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
	return rep, conclude(os.Stdout, rep, got.unmeasured()), nil
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

// interruptible returns a context that ends with a signal. Everything that is started ends with it, and hosts with this
// process.
func interruptible() (ctx context.Context, stop context.CancelFunc) {
	return signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
}

// runPaired measures side by side.
func (o options) runPaired() (*report.Report, int, error) {
	paired, err := parsePaired(o.paired)
	if err != nil {
		return nil, 2, err
	}
	if paired.clock = o.systems != ""; paired.clock && paired.conns == 0 {
		return nil, 2, errors.New("measure -systems side by side: want rr-NUMBER")
	}
	side, err := o.side()
	if err != nil {
		return nil, 2, err
	}
	if o.rounds < 0 || o.rounds == 1 || len(paired.twins(side)) == 1 {
		return nil, 2, errors.New("measure side by side: want two -rounds or more, and -also, " +
			"several -systems or several numbers of Services")
	}
	if err := testbed.Reexec(); err != nil {
		return nil, 1, err
	}
	ctx, stop := interruptible()
	defer stop()
	if _, err := o.pair(ctx, paired, os.Stdout); err != nil {
		return nil, 1, fmt.Errorf("measure builds side by side: %w", err)
	}
	return nil, 0, nil
}

// report starts a report.
func (p plan) report(ctx context.Context, c cores, sluice string) (rep *report.Report, err error) {
	rep = &report.Report{
		Date: time.Now().UTC().Truncate(time.Second), Command: "bin/compare " + strings.Join(os.Args[1:],
			" "),
		Machine: describeMachine(c), Rounds: p.rounds, Seconds: p.duration.Seconds(),
	}
	for _, s := range p.systems {
		version, err := s.version(ctx, sluice)
		if err != nil {
			return nil, err
		}
		rep.Systems = append(rep.Systems, report.System{Name: s.name, Version: version})
	}
	for _, w := range p.workloads {
		rep.Workloads = append(rep.Workloads, report.Workload{Name: w.name, About: w.about})
	}
	return rep, nil
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
	var tables strings.Builder
	if err := rep.WriteTables(&tables); err != nil {
		return err
	}
	files["README.md"], files[report.TablesFile] = page.String(), tables.String()
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
