package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// answers returns which pods answer the client within n connections; "" stands for none.
func answers(l *lab.Lab, n int) map[string]bool {
	out := make(map[string]bool)
	for range n {
		name, _ := l.Client.TryAsk("tcp", lab.WebAddr, time.Second)
		out[name] = true
	}
	return out
}

// TestRulesLifetime: rules match nothing any more when their process has been gone for the time of --rules-lifetime, so
// that those of another proxy behind them are in effect; while it lives, and while it is paused, they never end.
func TestRulesLifetime(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"userspace", "iptables"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			l := lab.New(t, testbed.Config{Pods: 3})
			before := l.Traces()
			l.Mode = mode
			l.ServeWeb()
			const theirs = "pod-0" // who answers by the rules of the other proxy
			l.Output("iptables", "-t", "nat", "-N", "KUBE-SERVICES")
			l.Output("iptables", "-t", "nat", "-A", "PREROUTING", "-j", "KUBE-SERVICES")
			l.Output("iptables", "-t", "nat", "-A", "KUBE-SERVICES", "-d", lab.WebIP, "-p", "tcp", "-j", "DNAT", "--to-destination", l.Pods[0].Addr4.String()+":8080")
			ours := func(when string) {
				t.Helper()
				if got := answers(l, 30); !got["pod-1"] && !got["pod-2"] || got[""] {
					t.Errorf("%s %v answer, want all by the program's rules", when, got)
				}
			}
			lapse := func(end syscall.Signal) {
				t.Helper()
				l.Signal(end)
				l.Wait()
				if got := answers(l, 10); len(got) == 1 && got[theirs] {
					t.Errorf("right after %v the rules match no more", end)
				}
				l.Eventually("the rules match no more", func() bool {
					got := answers(l, 10)
					return len(got) == 1 && got[theirs]
				})
			}
			const lifetime = 2 * time.Second
			start := func() { l.Start("--rules-lifetime", lifetime.String(), "--iptables-sync-period", "1h") }
			start()
			for end := time.Now().Add(2 * lifetime); time.Now().Before(end); {
				ours("while it runs")
			}
			if mode == "iptables" {
				l.Signal(syscall.SIGSTOP)
				for end := time.Now().Add(lifetime / 2); time.Now().Before(end); {
					ours("while it is paused")
				}
				l.Signal(syscall.SIGCONT)
			}
			lapse(syscall.SIGKILL)
			start()
			ours("after the next start")
			lapse(syscall.SIGTERM)
			l.Output("iptables", "-t", "nat", "-D", "PREROUTING", "-j", "KUBE-SERVICES")
			l.Output("iptables", "-t", "nat", "-F", "KUBE-SERVICES")
			l.Output("iptables", "-t", "nat", "-X", "KUBE-SERVICES")
			if out, err := l.Command("--cleanup").CombinedOutput(); err != nil || l.Output("ipset", "save") != "" {
				t.Errorf("--cleanup = %v, %s; left behind:\n%s\nbefore:\n%s", err, out, l.Traces(), before)
			}
		})
	}
}

// leaseMatch is the part of a jump by which it lapses.
var leaseMatch = regexp.MustCompile(` -m set --match-set SLUICE[46]-ALIVE src`)

// TestLifetimeComesWithUpgrade: rules of a version without the match get it with the upgrade, and no client notices.
func TestLifetimeComesWithUpgrade(t *testing.T) {
	v := newVisitors(t, "iptables")
	socket := filepath.Join(t.TempDir(), "socket")
	v.Start("--handover-socket", socket)
	save := func() string { return v.Output("iptables-save") }
	restore := v.Node.Command(t.Context(), "iptables-restore")
	restore.Stdin = strings.NewReader(leaseMatch.ReplaceAllString(save(), ""))
	if out, err := restore.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if leaseMatch.MatchString(save()) {
		t.Fatal("the match is there: the test tests nothing")
	}
	end := v.come(5)
	defer end()
	v.HandOver("--handover-socket", socket)
	v.Eventually("every jump has the match", func() bool {
		for line := range strings.Lines(save()) {
			if !strings.HasPrefix(line, "-A SLUICE") && strings.Contains(line, "-j SLUICE") && !leaseMatch.MatchString(line) {
				return false
			}
		}
		return true
	})
	end()
	t.Logf("%d connections, %d failed; the longest silence %v", v.connections.Load(), v.failed.Load(), time.Duration(v.silence.Load()))
}

// TestWithoutPrograms: a start without any iptables program removes the rules of one by iptables-nft that end by no
// lifetime, those of mode iptables, too.
func TestWithoutPrograms(t *testing.T) {
	t.Parallel()
	l := lab.New(t, testbed.Config{})
	before := l.Output("iptables-nft-save")
	l.ServeWeb()
	l.Write("own.yaml", (&lab.Movable{Name: "own", Addr: "10.96.0.81:80", Protocol: "TCP", Port: 8080, Path: "iptables"}).Manifest(),
		testbed.SliceManifest("own", 1, 8080, "TCP", testbed.Addrs(l.Pods...)...))
	l.Start("--packet-filter", "iptables", "--rules-lifetime", "0")
	l.Signal(syscall.SIGKILL)
	l.Wait()
	if rules := l.Output("iptables-nft-save"); !strings.Contains(rules, "SLUICE-SVC") || !strings.Contains(rules, "SLUICE-STEER") {
		t.Fatalf("the rules are\n%s", rules)
	}
	l.Wrap = []string{"env", "PATH=/nowhere"}
	l.Start("--packet-filter", "nftables")
	if answers(l, 1)[""] {
		t.Error("it does not answer")
	}
	if rules := l.Output("iptables-nft-save"); strings.Contains(rules, "SLUICE") {
		t.Errorf("rules stay:\n%s\nbefore:\n%s", rules, before)
	}
}

// legacyTools makes the program use iptables-legacy, and returns the file of its lock.
func legacyTools(l *lab.Lab) (lock string) {
	l.T.Helper()
	dir := l.T.TempDir()
	for _, name := range []string{"iptables", "ip6tables"} {
		for _, suffix := range []string{"", "-save", "-restore"} {
			path, err := exec.LookPath(name + "-legacy" + suffix)
			if err != nil {
				testbed.Missing(l.T, err.Error())
			}
			testbed.Check(l.T, os.Symlink(path, filepath.Join(dir, name+suffix)))
		}
	}
	lock = filepath.Join(dir, "lock")
	l.Wrap = []string{"env", "PATH=" + dir + ":" + os.Getenv("PATH"), "XTABLES_LOCKFILE=" + lock}
	return lock
}

// TestCrashWhileLocked: with iptables-legacy another program holds the xtables lock when the program starts after a
// crash, for longer than a run of iptables waits for it. What rules lead to is served meanwhile, and all afterwards.
func TestCrashWhileLocked(t *testing.T) {
	t.Parallel()
	l := lab.New(t, testbed.Config{})
	l.By = "iptables"
	lock := legacyTools(l)
	l.ServeWeb()
	l.ServeDNS()
	l.Start()
	l.Signal(syscall.SIGKILL)
	l.Wait()
	holder := hold(t, lock)
	l.Launch(l.Command("--manifests", l.Dir, "--packet-filter", l.By))
	served := func() {
		t.Helper()
		l.Eventually("TCP is served", func() bool { return !answers(l, 1)[""] })
		if name, err := l.Client.TryAsk("udp", lab.DNSAddr, testbed.Patience); err != nil || name == "" {
			t.Errorf("UDP: %q, %v", name, err)
		}
	}
	served()
	l.Eventually("it has waited for the lock", func() bool {
		return strings.Contains(l.Log.String(), "rules of an earlier process are served")
	})
	served()
	if strings.Contains(l.Log.String(), "serving\t") {
		t.Error("rules were written: the test tests nothing")
	}
	testbed.Check(t, holder.Close())
	if err := l.Process.Healthy(t.Context(), testbed.HealthURL); err != nil {
		t.Fatal(err)
	}
	served()
}

// hold takes a lock that the closing of the file releases.
func hold(t *testing.T, lock string) *os.File {
	t.Helper()
	holder, err := os.OpenFile(lock, os.O_RDWR|os.O_CREATE, 0o600)
	testbed.Check(t, err)
	t.Cleanup(func() { _ = holder.Close() })
	testbed.Check(t, unix.Flock(int(holder.Fd()), unix.LOCK_EX))
	return holder
}

// TestLockedAtStart: where nftables steers, another program that holds the xtables lock at the start keeps Services
// from mode iptables only until it releases it.
func TestLockedAtStart(t *testing.T) {
	t.Parallel()
	l := lab.New(t, testbed.Config{})
	l.By, l.Mode = "nftables", "iptables"
	holder := hold(t, legacyTools(l))
	l.ServeWeb()
	l.Start()
	on := func(path string) float64 { return l.Metric(fmt.Sprintf("sluice_service_data_path{path=%q}", path)) }
	if n := on("userspace"); n != 1 || answers(l, 1)[""] {
		t.Errorf("%v Services are in user space", n)
	}
	testbed.Check(t, holder.Close())
	l.Eventually("the Service moves", func() bool { return on("iptables") == 1 })
	if answers(l, 1)[""] {
		t.Error("it does not answer")
	}
	if n := strings.Count(l.Log.String(), "wait for the xtables lock"); n != 2 {
		t.Errorf("logged %d times, want once a family", n)
	}
}
