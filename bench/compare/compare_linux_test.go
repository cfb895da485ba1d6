package main

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/bench/load"
	"github.com/sluice-lb/sluice/bench/report"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// programVar has the test binary be the program, so that it can be interrupted.
const programVar = "SLUICE_COMPARE_PROGRAM"

func TestMain(m *testing.M) {
	if status, ok := load.Main(os.Args[1:]); ok {
		os.Exit(status)
	}
	if os.Getenv(programVar) != "" {
		main()
		return
	}
	status := testbed.Main(m)
	if built != "" {
		_ = os.RemoveAll(filepath.Dir(built))
	}
	os.Exit(status)
}

// thin returns what a round of the plan for everything measures, on a machine that has
// all programs.
func thin(t *testing.T, round int) (names, of []string) {
	t.Helper()
	p, err := options{}.plan()
	testbed.Check(t, err)
	p.systems, p.workloads = systems, workloads()
	for _, w := range p.workloads {
		for _, s := range p.order(w, round) {
			of = append(of, s.name)
			if !slices.Contains(names, w.name) {
				names = append(names, w.name)
			}
		}
	}
	return names, of
}

func TestPlans(t *testing.T) {
	names := func(p plan) (workloads, systems []string) {
		for _, w := range p.workloads {
			workloads = append(workloads, w.name)
		}
		for _, s := range p.systems {
			systems = append(systems, s.name)
		}
		return workloads, systems
	}
	p, err := options{workloads: "short, udp-64,services-10", systems: "goroutines,d*"}.plan()
	testbed.Check(t, err)
	if p.rounds != 7 || p.duration != 1500*time.Millisecond || p.thin {
		t.Errorf("%d rounds of %v", p.rounds, p.duration)
	}
	w, s := names(p)
	if !slices.Equal(w, []string{"short", "udp-64", "services-10"}) ||
		!slices.Equal(s, []string{"sluice", "goroutines", "dnat", "direct"}) {
		t.Errorf("%v with %v", w, s)
	}
	if p.runs() != 7*(4+4+1) {
		t.Errorf("%d runs", p.runs())
	}
	for round, want := range []string{"sluice", "goroutines", "dnat", "direct", "sluice"} {
		if got := p.order(p.workloads[0], round); got[0].name != want || len(got) != 4 {
			t.Errorf("round %d begins with %s of %d", round, got[0].name, len(got))
		}
	}
	also := options{workloads: "short", systems: "nginx"}
	for _, value := range []string{"old", "=" + os.Args[0], "nginx=" + os.Args[0], "old=", "old=/nowhere/sluice"} {
		if also.addBuild(value) == nil {
			t.Errorf("-also %s was taken", value)
		}
	}
	err = also.addBuild("old=" + os.Args[0] + " --default-policy access-log=all")
	if err != nil || also.addBuild("old="+os.Args[0]) == nil {
		t.Errorf("a further build: %v, and twice: none", err)
	}
	if p, err := also.plan(); err != nil || p.systems[len(p.systems)-1].name != "old" || len(also.also[0].flags) != 2 {
		t.Errorf("a further build is not measured: %v", err)
	}
	for _, wrong := range []options{{workloads: "nothing"}, {workloads: "short,nothing"}, {systems: "haproxi"},
		{systems: "nginx,n*x,z*"}, {workloads: "["}, {systems: "["}, {rounds: -1}, {duration: time.Millisecond},
		{rounds: 2000}} {
		if _, err := wrong.plan(); err == nil {
			t.Errorf("%+v was taken", wrong)
		}
	}
	if w, s := thin(t, 1); slices.Contains(w, "udp-gso") || slices.Contains(s, "direct") ||
		!slices.Contains(w, "services-10") || !slices.Contains(s, "haproxy") {
		t.Errorf("the second round of everything: %v, %v", w, s)
	}
	if w, s := thin(t, 3); !slices.Contains(w, "udp-gso") || !slices.Contains(s, "direct") {
		t.Errorf("the fourth round of everything: %v, %v", w, s)
	}
	quick, err := options{quick: true}.plan()
	testbed.Check(t, err)
	if w, _ := names(quick); !slices.Contains(w, "short") || slices.Contains(w, "mixed") || quick.rounds >= 7 {
		t.Errorf("quick: %v, %d rounds", w, quick.rounds)
	}
}

// TestTargetsAreOfWorkloads finds targets that would never be judged.
func TestTargetsAreOfWorkloads(t *testing.T) {
	all := workloads()
	known := func(name string) bool {
		return slices.ContainsFunc(all, func(w workload) bool { return w.name == name })
	}
	for _, target := range report.Targets {
		if !known(target.Workload) || target.Base != "" && !known(target.Base) {
			t.Errorf("no workload for %+v", target)
		}
		for _, name := range target.Against {
			if !slices.ContainsFunc(systems, func(s system) bool { return s.name == name }) {
				t.Errorf("no system for %+v", target)
			}
		}
	}
}

// built is the program that is measured, if a test has asked for it.
var built string

// build builds it for the first test that asks.
func build(t *testing.T) string {
	t.Helper()
	if built != "" {
		return built
	}
	dir, err := os.MkdirTemp("", "compare")
	testbed.Check(t, err)
	built = filepath.Join(dir, "sluice")
	out, err := exec.Command("go", "build", "-C", "../..", "-o", built, "./cmd/sluice").CombinedOutput()
	if err != nil {
		t.Fatalf("build sluice: %v\n%s", err, out)
	}
	return built
}

// TestSeveralCores: proxies have cores of their own as long as there is one left for the load.
func TestSeveralCores(t *testing.T) {
	for _, test := range []struct {
		load        []int
		workers     int
		proxy, rest string
	}{{[]int{0}, 2, "0,1", "0,1"}, {[]int{0, 1, 2}, 2, "2,3", "0,1"}, {[]int{0, 1, 2}, 4, "0,1,2,3", "0,1,2,3"}} {
		c := cores{proxy: len(test.load), load: test.load}
		if proxy, rest := c.several(test.workers); proxy != test.proxy || rest != test.rest {
			t.Errorf("%d workers on %d cores: %s, and %s for the load; want %s, %s", test.workers, len(test.load)+1,
				proxy, rest, test.proxy, test.rest)
		}
	}
}

func needLab(t *testing.T) {
	t.Helper()
	testbed.NewT(t, testbed.Config{}).Close()
	if runtime.NumCPU() < 2 {
		testbed.Missing(t, "the proxy and the load need a core each")
	}
}

// TestSmallRun measures the smallest workloads with Sluice and one peer, on real
// hosts, and publishes what it has found.
func TestSmallRun(t *testing.T) {
	needLab(t)
	out := t.TempDir()
	r, status, err := run(options{sluice: build(t), workloads: "short,udp-1,idle,services-10",
		systems: "goroutines,direct", rounds: 1, duration: 300 * time.Millisecond, force: true, out: out})
	if err != nil || status != 0 {
		t.Fatalf("status %d, %v", status, err)
	}
	if len(r.Problems) > 0 {
		t.Errorf("problems: %q", r.Problems)
	}
	for _, want := range []struct {
		workload, metric string
		systems          int // that have it
	}{
		{"short", report.CPU, 2}, {"short", report.Core, 3}, {"short", report.P99, 3}, {"short", report.Rate, 3},
		{"udp-1", report.CPU, 2}, {"udp-1", report.P999, 3}, {"idle", report.Memory, 2},
		{"services-10", "first byte", 1}, {"services-10", "change", 1}, {"services-10", "sync", 1},
		{"services-10", "ready", 1}, {"services-10", "rules", 1},
	} {
		n := 0
		for _, res := range r.Results {
			if res.Workload != want.workload || res.Metric != want.metric {
				continue
			}
			// Without a proxy its core may have nothing at all to do.
			nothing := want.metric == report.Memory || want.metric == report.Core && res.System == "direct"
			if n++; !(res.Median > 0) && !nothing {
				t.Errorf("%+v", res)
			}
		}
		if n != want.systems {
			t.Errorf("%s of %s is known of %d systems, want %d", want.metric, want.workload, n, want.systems)
		}
	}
	for _, name := range []string{"README.md", "cpu-tcp.svg", "cpu-udp.svg", "memory.svg"} {
		if _, err := os.Stat(filepath.Join(out, name)); err != nil {
			t.Error(err)
		}
	}
}

// TestOpenLoop asks at a rate that is a share of what the first system reaches, and proxies of several workers.
func TestOpenLoop(t *testing.T) {
	needLab(t)
	for _, peer := range []string{"haproxy", "nginx"} {
		if _, err := exec.LookPath(peer); err != nil {
			testbed.Missing(t, peer+" is not installed (make deps)")
		}
	}
	r, status, err := run(options{sluice: build(t), workloads: "open-30,open-short-30,workers-2-rr",
		systems: "haproxy,nginx", rounds: 1, duration: 300 * time.Millisecond, force: true})
	if err != nil || status != 0 || len(r.Problems) > 0 {
		t.Fatalf("status %d, %v, %v", status, err, r.Problems)
	}
	due := make(map[string]float64)
	for _, res := range r.Results {
		switch {
		case res.Metric == "due" && due[res.Workload] != 0 && due[res.Workload] != res.Median:
			t.Errorf("%s: %s was asked for %v in a second, another for %v", res.Workload, res.System, res.Median,
				due[res.Workload])
		case res.Metric == "due":
			due[res.Workload] = res.Median
		case res.Metric == "busiest" && (res.Median < 0.5 || res.Median > 1),
			res.Metric == report.All && !(res.Median > 0):
			t.Errorf("%+v", res)
		}
	}
	if len(due) != 2 {
		t.Errorf("rates that were due: %v", due)
	}
}

// TestPair measures one build beside itself.
func TestPair(t *testing.T) {
	needLab(t)
	o := options{sluice: build(t), rounds: 2}
	testbed.Check(t, o.addBuild("again="+build(t)))
	for _, wrong := range []options{{paired: "short", also: o.also}, {paired: "rr-0", also: o.also},
		{paired: "services-1", also: o.also}, {paired: "rr-1,services-2", also: o.also}, {paired: "services-2"},
		{paired: "rr-1"}, {paired: "rr-1", rounds: 1, also: o.also}, {paired: "rr-1", rounds: -1, also: o.also},
		{paired: "services-2,services-3", systems: "dnat"},
		{paired: "rr-1", systems: "dnat"}, {paired: "rr-1", systems: "["}} {
		wrong.sluice = o.sluice
		if _, status, err := run(wrong); status != 2 || err == nil {
			t.Errorf("%s, %d starts, %d other builds: status %d, %v", wrong.paired, wrong.rounds, len(wrong.also),
				status, err)
		}
	}
	kernel := options{sluice: o.sluice, rounds: 2, systems: report.DNAT + "," + report.Queue}
	for _, c := range []struct {
		options
		pairedWorkload
	}{{o, pairedWorkload{conns: 2, turns: 5}}, {kernel, pairedWorkload{conns: 2, turns: 5, clock: true}},
		{o, pairedWorkload{services: []int{3, 5}, asked: 2, changes: 1, turns: 5}}} {
		w := c.pairedWorkload
		twins, err := c.pair(t.Context(), w, t.Output())
		if err != nil || len(twins) != 2*max(1, len(w.services)) {
			t.Fatalf("%v: %d builds, %v", w, len(twins), err)
		}
		for _, tw := range twins {
			if len(tw.took) != 2 || slices.Min(tw.took) <= 0 || len(tw.change) < 2*3*w.changes {
				t.Errorf("%v: %s took %v us per request, %v ms per change", w, tw.system.name, tw.took, tw.change)
			}
		}
	}
}

// TestTurns measures path queue beside DNAT for a moment, in a run that measures other systems, too.
func TestTurns(t *testing.T) {
	needLab(t)
	r, status, err := run(options{sluice: build(t), workloads: "rr-64-turns,short-turns,short",
		systems: report.DNAT, rounds: 1, duration: 200 * time.Millisecond, force: true})
	if err != nil || status != 0 {
		t.Fatalf("status %d, %v", status, err)
	}
	got := make(map[string]float64)
	for _, res := range r.Results {
		got[res.Workload+" "+res.System+" "+res.Metric] = res.Median
	}
	ratio, queue, dnat := got["rr-64-turns sluice by turns"], got["rr-64-turns sluice queue"],
		got["rr-64-turns sluice dnat"]
	if queue <= 0 || dnat <= 0 || math.Abs(ratio*queue-dnat) > dnat/1000 || got["short dnat rate"] <= 0 {
		t.Errorf("%v", got)
	}
	for _, metric := range []string{report.ByTurns, report.MachineByTurns, report.Queue, report.DNAT} {
		if got["short-turns sluice "+metric] <= 0 {
			t.Errorf("short-turns has no %s: %v", metric, got)
		}
	}
	if failed, is := got["short-turns sluice errors"]; failed > 0 || !is {
		t.Errorf("%v errors of short connections, %v", failed, is)
	}
}

// TestPeersStart makes each peer forward for a moment.
func TestPeersStart(t *testing.T) {
	needLab(t)
	l, err := newLab(t.Context(), build(t))
	testbed.Check(t, err)
	defer l.close()
	w := workloads()[slices.IndexFunc(workloads(), func(w workload) bool { return w.name == "short" })]
	for _, s := range systems {
		t.Run(s.name, func(t *testing.T) {
			if why := s.hostLacks(); why != "" {
				t.Skipf("NOT TESTED: %s", why)
			}
			if s.needs != "" {
				testbed.Check(t, notInstalled([]string{s.needs}))
			}
			figures, err := plan{duration: 200 * time.Millisecond}.once(t.Context(), l, w, s)
			if err != nil { // other programs may have had both cores meanwhile
				t.Log(err)
				figures, err = plan{duration: 5 * time.Second}.once(t.Context(), l, w, s)
			}
			if err != nil || len(figures) == 0 {
				t.Errorf("%v, %v", figures, err)
			}
			for _, f := range figures {
				if f.metric == report.Errors && f.value > 0 {
					t.Errorf("%v errors: %q", f.value, l.remarks)
				}
			}
		})
	}
	out, err := l.tb.Node.Command(t.Context(), "iptables-save").Output()
	if err != nil || bytes.Contains(out, []byte("\n-A ")) {
		t.Errorf("rules are left behind: %v\n%s", err, out)
	}
}

// TestInterrupt sends SIGINT in the middle of a run: it must end soon, and leave no
// process and no file.
func TestInterrupt(t *testing.T) {
	needLab(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tmp := t.TempDir()
	cmd := exec.CommandContext(ctx, os.Args[0], "-sluice", build(t), "-workloads", "short", "-systems",
		"goroutines", "-rounds", "100", "-force")
	cmd.Env = append(os.Environ(), programVar+"=1", "TMPDIR="+tmp)
	seen := &watched{want: "[1/", found: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = seen, seen
	testbed.Check(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case <-seen.found:
	case err := <-ended:
		t.Fatalf("ended before it was interrupted: %v\n%s", err, seen.log.String())
	}
	testbed.Check(t, cmd.Process.Signal(syscall.SIGINT))
	var exit *exec.ExitError
	if err := <-ended; !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("ended with %v\n%s", err, seen.log.String())
	}
	left, err := os.ReadDir(tmp)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	procs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	testbed.Check(t, err)
	for _, p := range procs {
		if b, err := os.ReadFile(p); err == nil && strings.Contains(string(b), filepath.Dir(tmp)) {
			t.Errorf("still runs: %q", b)
		}
	}
}

// watched reports when a word has been written.
type watched struct {
	want  string
	found chan struct{}
	log   testbed.Buffer
	done  bool
}

func (w *watched) Write(p []byte) (int, error) {
	n, err := w.log.Write(p)
	if !w.done && strings.Contains(w.log.String(), w.want) {
		w.done = true
		close(w.found)
	}
	return n, err
}
