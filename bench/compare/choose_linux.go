package main

import (
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/sluice-lb/sluice/bench/report"
)

// plan chooses what to measure. A program that is not installed is an error, and so is a system that -systems names and
// the kernel cannot run. Without its name such a system is left out, and is in plan.lacking.
func (o options) plan() (p plan, err error) {
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
		return p, fmt.Errorf("measure %d rounds of %v: want 1 to 1000 of 100 ms to 1 h", o.rounds, o.duration)
	}
	p.thin = o.workloads == "" && o.systems == ""
	var lacking []string
	if p.workloads, p.lacking, err = o.chooseWorkloads(); err != nil {
		return p, err
	}
	if p.systems, lacking, err = o.chooseSystems(report.Ours); err != nil {
		return p, err
	}
	p.lacking = append(p.lacking, lacking...)
	for _, s := range p.idle() {
		if o.systems != "" {
			p.lacking = append(p.lacking, fmt.Sprintf("system %s: none of these workloads is for it", s))
		}
	}
	return p, notInstalled(p.programs())
}

// chooseWorkloads returns the workloads that the flags choose, and says why it leaves some out.
func (o options) chooseWorkloads() (chosen []workload, lacking []string, err error) {
	descriptors, err := raiseDescriptors()
	if err != nil {
		return nil, nil, err
	}
	return choose("workload", o.workloads, workloads(), func(w workload) candidate {
		never := o.workloads == "" && (w.asked || o.quick && !w.quick)
		return candidate{name: w.name, never: never, lacks: func() string { return w.hostLacks(descriptors) }}
	})
}

// chooseSystems returns the systems that the flags choose, with one that always takes part, and says why it leaves some
// out.
func (o options) chooseSystems(always string) (chosen []system, lacking []string, err error) {
	all := slices.Concat(systems, o.also)
	return choose("system", o.systems, all, func(s system) candidate {
		return candidate{name: s.name, always: s.name == always || s.build != "", lacks: s.hostLacks}
	})
}

// candidate is what may be measured.
type candidate struct {
	name   string
	always bool          // though no pattern matches it
	never  bool          // though a pattern does
	lacks  func() string // why the machine cannot run it; empty: it can
}

// choose returns those of all that the patterns match. What the machine cannot run is left out with a reason in
// lacking; it is an error if the patterns name it.
func choose[T any](kind, patterns string, all []T, candidateOf func(T) candidate) (
	chosen []T, lacking []string, err error) {
	var names []string
	for _, one := range all {
		c := candidateOf(one)
		names = append(names, c.name)
		ok, err := matches(patterns, c.name)
		if err != nil {
			return nil, nil, err
		}
		if !c.always && (!ok || c.never) {
			continue
		}
		why, err := missing(patterns, kind, c.name, c.lacks())
		switch {
		case err != nil:
			return nil, nil, err
		case why != "":
			lacking = append(lacking, why)
		default:
			chosen = append(chosen, one)
		}
	}
	return chosen, lacking, known(kind, patterns, names)
}

// missing says why something is left out, if there is a reason. It is an error if the patterns name it.
func missing(patterns, kind, name, reason string) (why string, err error) {
	switch {
	case reason == "":
		return "", nil
	case slices.Contains(split(patterns), name):
		return "", fmt.Errorf("measure %s %s: %s", kind, name, reason)
	}
	return fmt.Sprintf("%s %s: %s", kind, name, reason), nil
}

// programs returns what the runs of the plan start.
func (p plan) programs() []string {
	all := slices.Clone(labPrograms)
	for _, w := range p.workloads {
		all = append(all, w.programs()...)
		for _, s := range p.order(w, 0) {
			if s.needs != "" {
				all = append(all, s.needs)
			}
		}
	}
	return all
}

// idle returns the names of the systems that no workload of the plan is for.
func (p plan) idle() (names []string) {
	for _, s := range p.systems {
		runs := func(w workload) bool { return p.runsWith(w, s.name) }
		if s.name != report.Ours && !slices.ContainsFunc(p.workloads, runs) {
			names = append(names, s.name)
		}
	}
	return names
}

// runsWith reports whether a workload runs with a system.
func (p plan) runsWith(w workload, name string) bool {
	return slices.ContainsFunc(p.order(w, 0), func(s system) bool { return s.name == name })
}

// targets returns which targets this plan measures. left are the others: flags have left out their workload or system.
func (p plan) targets() (covered, left []report.Target) {
	for _, t := range report.Targets {
		if p.covers(t) {
			covered = append(covered, t)
		} else {
			left = append(left, t)
		}
	}
	return covered, left
}

// covers reports whether the plan measures all that a target compares.
func (p plan) covers(t report.Target) bool {
	index := func(name string) int {
		return slices.IndexFunc(p.workloads, func(w workload) bool { return w.name == name })
	}
	i := index(t.Workload)
	if i < 0 || t.Base != "" && index(t.Base) < 0 {
		return false
	}
	for _, name := range t.Systems() {
		if !p.runsWith(p.workloads[i], name) {
			return false
		}
	}
	return true
}

// conclude says at the end what was measured and what is missed, and returns the exit status: 1 if something is
// missing that was to be measured.
func conclude(w io.Writer, rep *report.Report, unmeasured []string) (status int) {
	all, measured := len(rep.Verdicts)+len(rep.LeftOut), 0
	for _, v := range rep.Verdicts {
		switch v.State {
		case report.NotMeasured, report.Invalid:
			unmeasured = append(unmeasured, v.String())
			continue
		case report.Misses, report.Fails:
			fmt.Fprintln(w, v)
		}
		measured++
	}
	if len(rep.LeftOut) > 0 {
		fmt.Fprintf(w, "flags left out %d targets: %s\n", len(rep.LeftOut), strings.Join(leftOut(rep), "; "))
	}
	for _, u := range unmeasured {
		fmt.Fprintln(w, "NOT MEASURED:", u)
		status = 1
	}
	missed, failed := rep.Missed()
	if measured == all && missed == 0 && status == 0 {
		fmt.Fprintln(w, "every target holds")
	} else {
		fmt.Fprintf(w, "%d of %d targets were measured, %d of them missed, %d of these failed what must hold\n",
			measured, all, missed, failed)
	}
	return status
}

// leftOut names the workloads that were left out, and the single targets of others.
func leftOut(rep *report.Report) (names []string) {
	for _, t := range rep.LeftOut {
		name := t.Workload
		if slices.ContainsFunc(rep.Verdicts, func(v report.Verdict) bool { return v.Workload == name }) {
			name = t.String()
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// split returns the comma-separated parts of a flag.
func split(patterns string) (parts []string) {
	if patterns == "" {
		return nil
	}
	for part := range strings.SplitSeq(patterns, ",") {
		parts = append(parts, strings.TrimSpace(part))
	}
	return parts
}

// matches reports whether a name matches one of the comma-separated patterns, of
// which none means any.
func matches(patterns, name string) (bool, error) {
	for _, pattern := range split(patterns) {
		ok, err := path.Match(pattern, name)
		if err != nil {
			return false, fmt.Errorf("use pattern %q: %w", pattern, err)
		}
		if ok {
			return true, nil
		}
	}
	return patterns == "", nil
}

// known returns an error for patterns that match none of the names.
func known(kind, patterns string, names []string) error {
	var errs []error
	for _, pattern := range split(patterns) {
		if !slices.ContainsFunc(names, func(name string) bool { ok, _ := path.Match(pattern, name); return ok }) {
			errs = append(errs, fmt.Errorf("there is no %s %q; -list has all", kind, pattern))
		}
	}
	return errors.Join(errs...)
}
