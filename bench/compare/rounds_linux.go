package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/sluice-lb/sluice/bench/report"
	"github.com/sluice-lb/sluice/bench/tracking"
)

// plan is what is to be measured.
type plan struct {
	workloads []workload
	systems   []system
	rounds    int
	duration  time.Duration
	thin      bool     // what no target is for takes part in some rounds only
	lacking   []string // what is left out, and why
}

// thinRounds says in which rounds of a thin plan everything takes part: in the first
// and in every third after it.
const thinRounds = 3

// perRun is about what a run takes besides its duration: starting, warming up, stopping.
const perRun = 1200 * time.Millisecond

// takes returns about how long the plan takes.
func (p plan) takes() time.Duration { return time.Duration(p.runs()) * (p.duration + perRun) }

// runs returns how many runs the plan has.
func (p plan) runs() int {
	n := 0
	for _, w := range p.workloads {
		for round := range p.rounds {
			n += len(p.order(w, round))
		}
	}
	return n
}

// order returns the systems that a workload is for, in the order of a round: each
// round begins with another, so that none always comes after the same.
func (p plan) order(w workload, round int) []system {
	var able []system
	rare := p.thin && round%thinRounds != 0
	for _, s := range p.systems {
		if rare && (!report.Targeted(w.name) || s.ceiling && !report.Compared(w.name, s.name)) ||
			w.alone && s.name != report.Ours || w.balances && !s.balances {
			continue
		}
		if strings.Contains(s.speaks, w.protocol) || s.speaks == "" {
			able = append(able, s)
		}
	}
	if len(able) > 0 {
		shift := round % len(able)
		able = slices.Concat(able[shift:], able[:shift])
	}
	return able
}

// outcome is what running a plan gives.
type outcome struct {
	samples      []report.Sample
	problems     []string
	measured     []string  // workloads and systems that gave figures
	failed       []string  // those of which a run gave none, and an error
	busy, stolen []float64 // by round
}

// measure runs the plan. A run that fails is a problem, and the run goes on; only the
// end of ctx ends them. progress gets a line for each run.
func (p plan) measure(ctx context.Context, l *lab, force bool, progress io.Writer) (o outcome, err error) {
	total, done := p.runs(), 0
	fmt.Fprintf(progress, "%d runs, about %v on an idle machine\n", total, p.takes().Round(time.Minute))
	for round := range p.rounds {
		busy, err := checkIdle(ctx, force, progress)
		if err != nil {
			return o, err
		}
		o.busy = append(o.busy, busy)
		before, err := allCores()
		if err != nil {
			return o, err
		}
		for _, w := range p.workloads {
			for _, s := range p.order(w, round) {
				if ctx.Err() != nil {
					return o, ctx.Err()
				}
				done++
				started := time.Now()
				l.remarks = nil
				figures, err := p.once(ctx, l, w, s)
				word := o.add(round, w.name, s.name, figures, l.remarks, err)
				fmt.Fprintf(progress, "[%d/%d] round %d  %-16s %-10s %4.1f s  %s\n", done, total, round+1, w.name,
					s.name, time.Since(started).Seconds(), word)
			}
		}
		after, err := allCores()
		if err != nil {
			return o, err
		}
		d := after.minus(before)
		o.stolen = append(o.stolen, d.share(d.stolen))
	}
	return o, nil
}

// add adds what a run gave, and returns it in a few words.
func (o *outcome) add(round int, workload, system string, figures []figure, remarks []string, err error) string {
	word := "-"
	if len(figures) > 0 {
		f := figures[0]
		word = fmt.Sprintf("%s %.4g %s", f.metric, f.value, f.unit)
	}
	if err != nil {
		word = err.Error()
		remarks = append(remarks, err.Error())
	}
	for _, r := range remarks {
		o.problems = append(o.problems, fmt.Sprintf("round %d, %s, %s: %s", round+1, workload, system, r))
	}
	for _, f := range figures {
		o.samples = append(o.samples, report.Sample{Round: round, Workload: workload, System: system, Metric: f.metric,
			Unit: f.unit, Value: f.value, Invalid: errors.Is(err, tracking.ErrInvalid)})
	}
	run := workload + " with " + system
	switch {
	case len(figures) > 0:
		o.measured = append(o.measured, run)
	case err != nil && !slices.Contains(o.failed, run):
		o.failed = append(o.failed, run)
	}
	return word
}

// unmeasured returns the workloads and systems of which no run gave a figure, and some failed.
func (o *outcome) unmeasured() []string {
	return slices.DeleteFunc(slices.Clone(o.failed), func(run string) bool { return slices.Contains(o.measured, run) })
}

// once starts a system, does the work and stops the system.
func (p plan) once(ctx context.Context, l *lab, w workload, s system) (figures []figure, err error) {
	if w.alone {
		return w.run(ctx, l, nil, p.duration)
	}
	l.services, l.workers, l.open = chosen(l.all, w), max(1, w.workers), w.connections
	r, err := s.start(ctx, l)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.stop()) }()
	if err := l.settle(ctx, r.pid()); err != nil {
		return nil, err
	}
	return w.run(ctx, l, r, p.duration)
}
