package e2e

import (
	"flag"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/bench/report"
	"github.com/sluice-lb/sluice/bench/stats"
	"github.com/sluice-lb/sluice/bench/tracking"
)

var scale struct {
	services, systems, out     string
	endpoints, rounds, changes int
	load, limit                time.Duration
}

func init() {
	flag.StringVar(&scale.services, "services", "5000", "comma-separated `NUMBERS` of Services that "+
		"BenchmarkScale measures, the least first")
	flag.IntVar(&scale.endpoints, "endpoints", 10, "`NUMBER` of endpoints of each of them, at most 100")
	flag.StringVar(&scale.systems, "systems", "*", "comma-separated `PATTERNS` of the systems that it measures")
	flag.IntVar(&scale.rounds, "rounds", 1, "`NUMBER` of rounds, in each of which every system is started")
	flag.IntVar(&scale.changes, "changes", 100, "`NUMBER` of changes of an endpoint in a round")
	flag.DurationVar(&scale.load, "load", 0, "`TIME` of each kind of load; 0 means that there is none")
	flag.StringVar(&scale.out, "out", "", "`FOLDER` to write curves over the numbers of Services to; none by default")
	flag.DurationVar(&scale.limit, "limit", 2*time.Minute, "`TIME` that a system has to serve, and for its changes")
}

// scaled are the systems that BenchmarkScale measures. All run with the same account and file.
var scaled = []struct {
	name    string
	program *string
	mode    string
}{
	{"sluice", sluice, ""},
	{"sluice-nftables", sluice, "nftables"},
	{"sluice-queue", sluice, "queue"},
	{"sluice-iptables", sluice, "iptables"},
	{"kube-proxy-nftables", kubeproxy, "nftables"},
	{"kube-proxy-iptables", kubeproxy, "iptables"},
}

// figure is what a run of a system has shown.
type figure struct {
	name  string
	value float64
}

// BenchmarkScale measures Sluice beside the real kube-proxy in a large cluster: the time until they serve, what a
// change of one endpoint takes, and what forwarding costs. It prints a table, with the medians of the rounds.
//
//   - served: from the start until a connection to the last Service is answered.
//   - change: from when a watch reports that one of the endpoints of a Service is another one until a new connection is
//     answered by that. One begins each millisecond, and with 10 endpoints about each tenth is for it.
//   - CPU a change: of the process and of the programs that it runs; in user space with what those connections cost.
//   - burst: from the first write of up to 1,000 slices until the change of the last one shows.
//   - first byte: of one client after the other, from its SYN on.
//   - short connections and requests: of 32 clients. CPU is the machine's, since the kernel forwards in the time of
//
// clients     and servers.
func BenchmarkScale(b *testing.B) {
	if scale.endpoints < 1 || scale.endpoints > 100 {
		b.Fatalf("-endpoints %d: give 1 to 100", scale.endpoints)
	}
	m := &many{lab: newLab(b), endpoints: scale.endpoints}
	m.mortal = true
	m.asKubeProxy()
	m.serve(whoPort, m.Pods...)
	for e := range m.endpoints {
		m.check(m.Pods[0].Command(m.ctx, "ip", "address", "add", alias(e)+"/24", "dev", "eth0").Run())
	}
	m.serveLoad()
	m.check(tracking.Shorten(m.Node))
	labels := m.describe(b)
	var curves curves
	for text := range strings.SplitSeq(scale.services, ",") {
		n, err := strconv.Atoi(text)
		m.check(err)
		if n < max(m.written, 2) || n > 100000 {
			b.Fatalf("-services %s: give rising numbers from 2 to 100000", scale.services)
		}
		start := time.Now()
		m.grow(n)
		wrote := time.Since(start)
		m.rest()
		b.Logf("%d Services written in %v; the control plane rests after %v", n, wrote, time.Since(start))
		t := table{rounds: scale.rounds}
		for round := range scale.rounds {
			for _, s := range scaled {
				if labels[s.name] == "" {
					continue
				}
				figures, err := m.measure(*s.program, s.mode)
				t.add(round, labels[s.name], figures)
				if err != nil {
					b.Errorf("%s: %v", labels[s.name], err)
					t.invalid = append(t.invalid, labels[s.name])
				}
			}
		}
		t.print(fmt.Sprintf("%d x %d", n, m.endpoints))
		curves.add(n, &t)
	}
	if scale.out != "" {
		for _, p := range curves.pictures(m.endpoints) {
			m.check(os.WriteFile(filepath.Join(scale.out, p.Name), []byte(p.SVG), 0o644))
		}
	}
	b.ReportMetric(0, "ns/op") // says nothing here
}

// describe prints what the figures are of, and returns the chosen systems' names with their versions.
func (m *many) describe(b *testing.B) map[string]string {
	m.t.Helper()
	kernel, err := os.ReadFile("/proc/sys/kernel/osrelease")
	m.check(err)
	fmt.Printf("\n%s: Linux %s, %d cores, %s\n", time.Now().UTC().Format("2006-01-02 15:04 MST"),
		strings.TrimSpace(string(kernel)), runtime.NumCPU(), runtime.Version())
	patterns, err := choose(scale.systems)
	if err != nil {
		b.Fatal(err)
	}
	labels, said := make(map[string]string), make(map[string]string)
	for _, s := range scaled {
		if !patterns[s.name] {
			continue
		}
		if said[*s.program] == "" {
			out, err := exec.CommandContext(m.ctx, *s.program, "--version").Output()
			m.check(err)
			said[*s.program] = strings.TrimSpace(string(out))
			fmt.Printf("%s: %s\n", filepath.Base(*s.program), said[*s.program])
		}
		labels[s.name] = report.System{Name: s.name, Version: said[*s.program]}.Label()
	}
	return labels
}

// choose returns the systems that comma-separated patterns choose. Each pattern chooses one at least.
func choose(patterns string) (map[string]bool, error) {
	chosen := make(map[string]bool)
	for pattern := range strings.SplitSeq(patterns, ",") {
		some := false
		for _, s := range scaled {
			ok, err := path.Match(pattern, s.name)
			if err != nil {
				return nil, fmt.Errorf("-systems %s: %w", pattern, err)
			}
			if ok {
				chosen[s.name], some = true, true
			}
		}
		if !some {
			return nil, fmt.Errorf("-systems %s: there is no such system", pattern)
		}
	}
	return chosen, nil
}

// measure runs a system. What it cannot do within the limit is missing among its figures. The error says that they are
// invalid.
func (m *many) measure(program, mode string) (all []figure, invalid error) {
	m.t.Helper()
	start := time.Now()
	m.launchProgram(program, nil, "--config", m.proxyConfig(mode))
	defer func() {
		m.stop(syscall.SIGKILL)
		// The cleanup of either takes longer than to have the kernel forget everything.
		m.onNode("nft flush ruleset; ipset destroy; conntrack -F 2>&1")
	}()
	last := m.addr(manyName(m.services-1), 80)
	served, ok := m.answered(last, scale.limit, func(string) bool { return true })
	if !ok {
		m.t.Logf("%s: not served within %v", program, scale.limit)
		return []figure{{"most memory MiB", m.status("VmHWM")}}, nil
	}
	// The kernel has let clients through that came before the rules, and for two minutes does the same to any
	// that has the port of one of them (nf_conntrack_tcp_timeout_syn_sent).
	m.onNode("conntrack -F 2>&1")
	all = append(all, figure{"served s", served.Sub(start).Seconds()})
	if scale.changes > 0 {
		all = append(all, m.changes()...)
	}
	if scale.load > 0 {
		before, err := tracking.Read(m.ctx, m.Node)
		m.check(err)
		all = append(all, m.load()...)
		after, err := tracking.Read(m.ctx, m.Node)
		m.check(err)
		invalid = after.Since(before)
	}
	if scale.changes > 0 {
		all = append(all, m.burst(last)...)
	}
	return append(all, figure{"most memory MiB", m.status("VmHWM")}), invalid
}

// table has the figures of all rounds.
type table struct {
	rounds         int
	names, systems []string
	invalid        []string                // systems
	values         map[[2]string][]float64 // by system and name, a value for each round
}

func (t *table) add(round int, system string, figures []figure) {
	if t.values == nil {
		t.values = make(map[[2]string][]float64)
	}
	if !slices.Contains(t.systems, system) {
		t.systems = append(t.systems, system)
	}
	for _, f := range figures {
		if !slices.Contains(t.names, f.name) {
			t.names = append(t.names, f.name)
		}
		key := [2]string{system, f.name}
		if t.values[key] == nil {
			t.values[key] = slices.Repeat([]float64{math.NaN()}, t.rounds)
		}
		t.values[key][round] = f.value
	}
}

// reference is the system that the ratios are of, in any version.
const reference = "kube-proxy-nftables"

// print writes a row for each system, with the ratio to the same round's figure of the reference where there are some.
func (t *table) print(size string) {
	fmt.Printf("\n| Services | system | %s |\n|---|---|%s\n", strings.Join(t.names, " | "),
		strings.Repeat("---|", len(t.names)))
	of := slices.IndexFunc(t.systems, func(s string) bool { return strings.HasPrefix(s, reference) })
	for i, s := range t.systems {
		label := s
		if slices.Contains(t.invalid, s) {
			label += " INVALID"
		}
		fmt.Printf("| %s | %s |", size, label)
		for _, name := range t.names {
			values := t.values[[2]string{s, name}]
			var others []float64
			if of >= 0 {
				others = t.values[[2]string{t.systems[of], name}]
			}
			if values == nil {
				fmt.Print(" - |")
				continue
			}
			fmt.Printf(" %.4g", stats.Median(values))
			if i != of && others != nil && t.rounds > 1 {
				fmt.Printf(" (%.3f x)", stats.Median(stats.Ratios(values, others)))
			}
			fmt.Print(" |")
		}
		fmt.Println()
	}
}
