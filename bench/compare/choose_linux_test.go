package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/bench/report"
	"github.com/sluice-lb/sluice/bench/tracking"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// oneLine checks an error that a person is to act on.
func oneLine(t *testing.T, err error, wanted ...string) {
	t.Helper()
	if err == nil || strings.Contains(err.Error(), "\n") {
		t.Fatalf("want one line: %v", err)
	}
	for _, want := range wanted {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
}

// programs makes programs that do nothing the only ones that are found.
func programs(t *testing.T, names ...string) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "bin")
	testbed.Check(t, os.Mkdir(dir, 0o755))
	testbed.Check(t, os.Mkdir(filepath.Join(dir, "../root"), 0o755)) // where nginx's module would be
	for _, name := range names {
		testbed.Check(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), 0o755))
	}
	t.Setenv("PATH", dir)
	return dir
}

// TestNotInstalled: a program that is missing ends a run before anything is measured. The error says what brings it.
func TestNotInstalled(t *testing.T) {
	programs(t)
	_, err := options{workloads: "rr-64", systems: "haproxy"}.plan()
	oneLine(t, err, "wrk", "haproxy", "conntrack", "make deps", "make peers")
	_, err = options{paired: "rr-64", systems: "nginx,dnat"}.side()
	oneLine(t, err, "nginx", "iptables-restore", "make peers")

	dir := programs(t, append([]string{"haproxy", "nginx"}, labPrograms...)...)
	_, err = options{workloads: "short", systems: "nginx"}.plan()
	oneLine(t, err, "stream module of nginx", "make peers")
	module := filepath.Join(dir, "../root/usr/lib/nginx/modules/ngx_stream_module.so")
	testbed.Check(t, os.MkdirAll(filepath.Dir(module), 0o755))
	testbed.Check(t, os.WriteFile(module, nil, 0o644))
	if _, err := (options{workloads: "short", systems: "nginx"}).plan(); err != nil {
		t.Error(err)
	}
	testbed.Check(t, os.Remove(filepath.Join(dir, "haproxy")))
	_, err = options{workloads: "short,dns", systems: "nginx"}.plan()
	if oneLine(t, err, "dnsmasq"); strings.Contains(err.Error(), "haproxy") {
		t.Errorf("haproxy is not to be measured: %v", err)
	}
	_, err = options{workloads: "short"}.plan()
	oneLine(t, err, "haproxy", "make peers")

	_, status, err := run(options{sluice: filepath.Join(dir, "sluice")})
	oneLine(t, err, "make build")
	if status == 0 {
		t.Error("without Sluice the run succeeds")
	}
}

// TestFewDescriptors: a workload of more connections than processes may have is left out with a reason, or refused.
func TestFewDescriptors(t *testing.T) {
	for _, w := range connectionWorkloads() {
		few, many := w.hostLacks(16384), w.hostLacks(descriptors)
		if (few == "") != (w.connections <= 5000) || many != "" {
			t.Errorf("%s: %q, %q", w.name, few, many)
		}
	}
	why, err := missing("connections-*", "workload", "connections-9", "few")
	if err != nil || why != "workload connections-9: few" {
		t.Errorf("%q, %v", why, err)
	}
	if _, err := missing("short,connections-9", "workload", "connections-9", "few"); err == nil {
		t.Error("a workload that is named is left out")
	}
}

// TestLacking: what the kernel cannot run is left out with a reason, but an error where it is named.
func TestLacking(t *testing.T) {
	if systemOf("ipvs").hostLacks() == "" {
		t.Skip("NOT TESTED: the kernel has ipvs")
	}
	p, err := options{workloads: "short", systems: "ipv*"}.plan()
	if err != nil || len(p.lacking) != 1 || !strings.Contains(p.lacking[0], "ip_vs") {
		t.Errorf("%v, %v", p.lacking, err)
	}
	_, err = options{workloads: "short", systems: "direct, ipvs"}.plan()
	oneLine(t, err, "ip_vs")
	p, err = options{workloads: "udp-64", systems: "haproxy"}.plan()
	if err != nil || len(p.lacking) != 1 || !strings.Contains(p.lacking[0], "haproxy") {
		t.Errorf("a system that no workload is for: %v, %v", p.lacking, err)
	}
}

// TestTargetsOfPlans: a run of everything judges every target, others say which they leave out.
func TestTargetsOfPlans(t *testing.T) {
	usual := slices.DeleteFunc(workloads(), func(w workload) bool { return w.asked })
	everything := plan{workloads: usual, systems: systems}
	if covered, left := everything.targets(); len(left) > 0 || len(covered) != len(report.Targets) {
		t.Errorf("a run of everything leaves out %q", left)
	}
	only := func(name string) []workload {
		return slices.DeleteFunc(workloads(), func(w workload) bool { return w.name != name })
	}
	p := plan{workloads: only("rr-1000"), systems: []system{systemOf(report.Ours), systemOf(haproxyName)}}
	covered, left := p.targets()
	rep := &report.Report{LeftOut: left, Verdicts: []report.Verdict{{Workload: "rr-1000"}}}
	if names := leftOut(rep); len(covered) != 1 || len(left) != len(report.Targets)-1 ||
		!slices.Contains(names, "rr-1000 cpu against haproxy, nginx") || !slices.Contains(names, "udp-64") {
		t.Errorf("%v, without %q", covered, names)
	}
	p = plan{workloads: only("services-10000"), systems: systems[:1]}
	covered, left = p.targets()
	rep = &report.Report{LeftOut: left, Verdicts: []report.Verdict{{Workload: "services-10000"}}}
	if names := leftOut(rep); len(covered) != 3 ||
		!slices.Contains(names, "services-10000 first byte against services-10") {
		t.Errorf("%v, without what it is compared with: %q", covered, names)
	}
}

func TestConclude(t *testing.T) {
	good := report.Verdict{State: report.Holds}
	missed := report.Verdict{Workload: "short", State: report.Misses}
	not := report.Verdict{Workload: "dns", State: report.NotMeasured}
	invalid := report.Verdict{Workload: "dns", State: report.Invalid}
	for name, test := range map[string]struct {
		verdicts   []report.Verdict
		leftOut    []report.Target
		unmeasured []string
		status     int
		has        []string
	}{
		"all hold": {[]report.Verdict{good}, nil, nil, 0, []string{"every target holds"}},
		"a miss": {[]report.Verdict{good, missed}, nil, nil, 0,
			[]string{"misses: ", "2 of 2 targets", "1 of them missed"}},
		"restricted": {[]report.Verdict{good}, []report.Target{{Workload: "rr-64"}, {Workload: "dns"}}, nil, 0,
			[]string{"left out 2 targets: rr-64; dns\n", "1 of 3 targets", "0 of them"}},
		"not measured": {[]report.Verdict{good, not}, nil, nil, 1, []string{"NOT MEASURED: ", "in dns", "1 of 2"}},
		"invalid":      {[]report.Verdict{good, invalid}, nil, nil, 1, []string{"NOT MEASURED: invalid", "1 of 2"}},
		"no target": {nil, []report.Target{{Workload: "rr-64"}}, []string{"mixed with nginx"}, 1,
			[]string{"NOT MEASURED: mixed with nginx"}},
		"failed run": {[]report.Verdict{good}, nil, []string{"mixed with nginx"}, 1,
			[]string{"NOT MEASURED: mixed with nginx"}},
	} {
		var out strings.Builder
		status := conclude(&out, &report.Report{Verdicts: test.verdicts, LeftOut: test.leftOut}, test.unmeasured)
		if status != test.status {
			t.Errorf("%s: status %d:\n%s", name, status, out.String())
		}
		for _, want := range test.has {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s: no %q in\n%s", name, want, out.String())
			}
		}
		if holds := strings.Contains(out.String(), "every target holds"); holds != (name == "all hold") {
			t.Errorf("%s:\n%s", name, out.String())
		}
	}
}

func TestOutcome(t *testing.T) {
	var o outcome
	figures := []figure{{report.Rate, "1/s", 3}}
	o.add(0, "short", "nginx", nil, nil, errors.New("refused"))
	o.add(0, "short", "haproxy", nil, nil, errors.New("refused"))
	o.add(0, "idle", "dnat", nil, nil, nil)
	o.add(1, "short", "haproxy", figures, []string{"two errors"}, nil)
	o.add(1, "short", "sluice", figures, nil, tracking.Table{}.Since(tracking.Table{}))
	if got := o.unmeasured(); !slices.Equal(got, []string{"short with nginx"}) {
		t.Errorf("not measured: %q", got)
	}
	if len(o.problems) != 4 || len(o.samples) != 2 || o.samples[0].Invalid || !o.samples[1].Invalid {
		t.Errorf("%q, %+v", o.problems, o.samples)
	}
}

// TestTrackingSpoilsARun: a system is measured while conntrack drops packets of the node.
func TestTrackingSpoilsARun(t *testing.T) {
	needLab(t)
	l, err := newLab(t.Context(), build(t))
	testbed.Check(t, err)
	defer l.close()
	w := workloads()[slices.IndexFunc(workloads(), func(w workload) bool { return w.name == "short" })]
	p := plan{duration: 200 * time.Millisecond}
	for _, name := range []string{relayName, "direct"} {
		l.tracked.Lost = map[string]int{"drop": -1} // one more since
		figures, err := p.once(t.Context(), l, w, systemOf(name))
		if len(figures) == 0 || !errors.Is(err, tracking.ErrInvalid) || !strings.Contains(err.Error(), "drop ") {
			t.Errorf("%s: %v, %v", name, figures, err)
		}
	}
	if _, err := p.once(t.Context(), l, w, systemOf("direct")); err != nil {
		t.Errorf("the next run: %v", err)
	}
	out, err := l.tb.Node.Command(t.Context(), "sysctl", "-n", "net.netfilter.nf_conntrack_udp_timeout").Output()
	if got := strings.TrimSpace(string(out)); err != nil || got != "2" {
		t.Errorf("UDP flows are tracked for %s s, %v", got, err)
	}
}

// TestVersions: the peers beside this program come first, and a system that cannot say its version is an error.
func TestVersions(t *testing.T) {
	t.Setenv("PATH", os.Getenv("PATH"))
	testbed.Check(t, usePeers())
	self, err := os.Executable()
	testbed.Check(t, err)
	if first := filepath.SplitList(os.Getenv("PATH"))[0]; first != filepath.Join(filepath.Dir(self), "peers/bin") {
		t.Errorf("programs come from %s", first)
	}
	for _, s := range []system{{name: "mute", say: []string{"false"}}, {name: "none", say: []string{"/nowhere/none"}}} {
		p := plan{systems: []system{systemOf("direct"), s}}
		if _, err := p.report(t.Context(), cores{}, ""); err == nil || !strings.Contains(err.Error(), s.name) {
			t.Errorf("%s: %v", s.name, err)
		}
	}
}
