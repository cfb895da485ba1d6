package handover

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/node"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// line is a line of processes, each of which takes over from the one before.
type line struct {
	*lab.Lab
	pidFile, socket string
}

// newLine makes a lab whose program can be upgraded.
func newLine(t *testing.T, cfg testbed.Config) *line {
	t.Helper()
	l := lab.New(t, cfg)
	run := filepath.Join(t.TempDir(), "run")
	testbed.Check(t, os.Mkdir(run, 0o700))
	n := &line{l, filepath.Join(run, "pid"), filepath.Join(run, "handover.sock")}
	var err error
	if l.File, err = os.Create(filepath.Join(run, "log")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // successors are not children of this process
		if pid := n.pid(); pid > 1 {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if t.Failed() {
			t.Logf("the programs' log:\n%s", n.logged())
		}
		_ = l.File.Close()
	})
	return n
}

func (n *line) start(args ...string) {
	n.T.Helper()
	n.Lab.Start(append([]string{"--pid-file", n.pidFile, "--handover-socket", n.socket}, args...)...)
	n.Eventually("the program can be upgraded", func() bool {
		_, err := os.Stat(n.socket)
		return err == nil && (n.pid() != 0 || slices.Contains(args, "--pid-file="))
	})
}

// logged returns what all processes of the line have logged.
func (n *line) logged() string {
	b, err := os.ReadFile(n.File.Name())
	if err != nil {
		n.T.Fatal(err)
	}
	return string(b)
}

// pid returns the process that serves, 0 if none has.
func (n *line) pid() int {
	b, err := os.ReadFile(n.pidFile)
	if err != nil {
		return 0
	}
	pid, _ := strconv.Atoi(string(b))
	return pid
}

// upgrade has the program upgraded, and returns what sluice upgrade says.
func (n *line) upgrade() (string, error) {
	n.T.Helper()
	out, err := n.Command("upgrade", "--handover-socket", n.socket).CombinedOutput()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil // it has succeeded, and this process was slow to read its last word
	}
	return string(out), err
}

// mustUpgrade wants the process to be another one afterwards, and the only one.
func (n *line) mustUpgrade() {
	n.T.Helper()
	before := n.pid()
	out, err := n.upgrade()
	if err != nil {
		n.T.Fatalf("sluice upgrade: %v, %s", err, out)
	}
	n.Eventually("the old process is gone", func() bool { return !testbed.Alive(before) })
	n.Eventually("the PID file has the new process", func() bool { return n.pid() != before })
	n.Eventually("it is alone", func() bool { return slices.Equal(n.Processes(), []int{n.pid()}) })
	if !strings.Contains(out, strconv.Itoa(n.pid())) || !testbed.Alive(n.pid()) {
		n.T.Fatalf("process %d is to serve: alive %v; %s", n.pid(), testbed.Alive(n.pid()), out)
	}
}

func TestUpgrade(t *testing.T) {
	testbed.Race(t)
	t.Parallel()
	n := newLine(t, testbed.Config{})
	n.ServeWeb()
	n.ServeDNS()
	n.start()
	for range 3 {
		n.mustUpgrade()
		if name, err := n.Client.Who(lab.WebAddr); err != nil || name == "" {
			t.Fatalf("after an upgrade TCP gives %q, %v", name, err)
		}
		n.Eventually("the successor has the instance lock", func() bool {
			return n.Node.Do(func() error {
				c, err := node.NewLock()
				c.Release()
				return err
			}) != nil
		})
	}
}

// TestWaysToUpgrade: signals and a changed file of --config do it too, with what they find
// on the disk.
func TestWaysToUpgrade(t *testing.T) {
	testbed.Race(t)
	t.Parallel()
	n := newLine(t, testbed.Config{Pods: 1})
	n.ServeEcho()
	file, write := lab.ConfigFile(t)
	write("mode: userspace\n")
	n.start("--config", file)
	c := n.Hold()
	c.Works()
	for what, do := range map[string]func(){
		"SIGHUP":   func() { _ = syscall.Kill(n.pid(), syscall.SIGHUP) },
		"SIGUSR2":  func() { _ = syscall.Kill(n.pid(), syscall.SIGUSR2) },
		"--config": func() { write("mode: userspace\nportRange: 31000-31009\n") },
	} {
		before := n.pid()
		do()
		n.Eventually(what+" leads to another process", func() bool { return n.pid() != before && !testbed.Alive(before) })
		c.Works()
		n.Hold().Works()
	}
	n.Eventually("the new port range is in force", func() bool {
		return strings.Contains(n.Steered(), ": 3100")
	})
	c.Works()
	n.Hold().Works()
	write("mode: bridge\n")
	n.Eventually("the mistake is in the log", func() bool { return strings.Contains(n.logged(), "the last good one stays") })
	c.Works()
}

// TestCleanupOnExit: nothing is left if that is asked for.
func TestCleanupOnExit(t *testing.T) {
	t.Parallel()
	n := newLine(t, testbed.Config{Pods: 1})
	before := n.Traces()
	n.ServeEcho()
	n.start("--cleanup-on-exit", "--drain-timeout", "100ms")
	n.mustUpgrade()
	c := n.Hold()
	c.Works()
	pid := n.pid()
	_ = syscall.Kill(pid, syscall.SIGTERM)
	n.Eventually("the process has ended", func() bool { return !testbed.Alive(pid) })
	if after := n.Traces(); after != before {
		t.Errorf("left behind:\n%s\nbefore:\n%s", after, before)
	}
	if want := `"tcp_connections": 1`; !strings.Contains(n.logged(), "draining\t{"+want) {
		t.Errorf("the log does not count what was open:\n%s", n.logged())
	}
	for _, file := range []string{n.pidFile, n.socket} {
		if _, err := os.Stat(file); err == nil {
			t.Errorf("%s is still there", file)
		}
	}
}

// TestOffloadedGoesOn: Services that the kernel forwards do not notice an upgrade either,
// and are not touched by it.
func TestOffloadedGoesOn(t *testing.T) {
	testbed.Race(t)
	testbed.VM(t)
	for _, mode := range []string{"queue", "nftables", "iptables", "ipvs"} {
		t.Run(mode, func(t *testing.T) {
			lab.NeedMode(t, mode)
			n := newLine(t, testbed.Config{})
			g := emptyLoad(n.Lab)
			t.Cleanup(g.end)
			n.ServeWeb()
			g.serveDNS()
			n.Mode = mode
			n.start()
			rate, flows := 100, 10
			if runtime.NumCPU() == 1 { // as in the VM
				rate, flows = 10, 1
			}
			for _, from := range []*testbed.Host{n.Client, n.Pods[0], n.Node} {
				g.connect(from, lab.WebAddr, rate)
			}
			for range flows {
				g.ask(lab.DNSAddr)
			}
			wait(time.Second)
			_, idle, _ := g.asked()
			t.Logf("before the first upgrade %d connections failed of %d, %d answers missing", g.failed.Load(), g.fresh.Load(), idle)
			for range 3 {
				n.mustUpgrade()
				n.Eventually("its own rules are in force", func() bool {
					_, page := n.Get(testbed.MetricsURL)
					_, ok := testbed.Series(page, `sluice_handover_last_timestamp_seconds{result="succeeded"}`)
					return ok
				})
			}
			g.end()
			g.nothingLost()
			if got := n.Metric(`sluice_connections_total{protocol="TCP",result="established"}`); got != 0 {
				t.Errorf("%v connections came to user space: the test tests nothing", got)
			}
		})
	}
}

// TestEjectionsCross: an endpoint that is ejected stays so after an upgrade, without another failure, and returns.
func TestEjectionsCross(t *testing.T) {
	testbed.Race(t)
	t.Parallel()
	n := newLine(t, testbed.Config{})
	n.ServeWeb()
	n.start()
	testbed.Check(t, n.Pods[0].Blackhole(true))
	ask := func(times int) map[string]int {
		answers := make(map[string]int)
		for range times {
			name, err := n.Client.Who(lab.WebAddr)
			testbed.Check(t, err)
			answers[name]++
		}
		return answers
	}
	ask(15)
	n.mustUpgrade()
	if got, active := ask(20), n.Metric(`sluice_endpoints_excluded{reason="ejected"}`); got["pod-1"] != 10 || got["pod-2"] != 10 || active != 1 ||
		n.Metric(`sluice_dials_total{protocol="TCP",result="timeout"}`) != 5 { // the counters go on
		t.Errorf("after the upgrade requests go to %v, %v endpoints are ejected and %v dials were not answered", got, active,
			n.Metric(`sluice_dials_total{protocol="TCP",result="timeout"}`))
	}
	testbed.Check(t, n.Pods[0].Blackhole(false))
	n.Eventually("the endpoint returns", func() bool {
		return n.Metric(`sluice_endpoints_excluded{reason="ejected"}`) == 0
	})
	if got := ask(30); got["pod-0"] != 10 {
		t.Errorf("after its return requests go to %v, want 10 each", got)
	}
}

// TestBindAddressChanges: after an upgrade by which proxy ports listen elsewhere, every
// Service is served as after a start, and nothing listens where it did before.
func TestBindAddressChanges(t *testing.T) {
	testbed.Race(t)
	t.Parallel()
	n := newLine(t, testbed.Config{})
	n.ServeWeb()
	n.ServeDNS()
	file, write := lab.ConfigFile(t)
	alt := n.Node.Alt4
	listens := func() (found bool) { // a socket is open at the second address of the node
		b := alt.As4()
		at := fmt.Sprintf("%02X%02X%02X%02X:", b[3], b[2], b[1], b[0])
		for protocol, state := range map[string]string{"tcp": "0A", "udp": "07"} {
			_ = n.Node.Do(func() error {
				sockets, err := os.ReadFile("/proc/thread-self/net/" + protocol)
				for line := range strings.Lines(string(sockets)) {
					w := strings.Fields(line)
					found = found || len(w) > 3 && strings.HasPrefix(w[1], at) && w[3] == state
				}
				return err
			})
		}
		return found
	}
	check := func(when string) {
		t.Helper()
		for _, from := range []*testbed.Host{n.Client, n.Node, n.Pods[0]} {
			if name, err := testbed.NewUDPClient(t, from, lab.DNSAddr).Insist(); err != nil || name == "" {
				t.Errorf("%s, UDP from %s: answer %q, %v", when, from, name, err)
			}
			if name, err := from.Who(lab.WebAddr); err != nil || name == "" {
				t.Errorf("%s, TCP from %s: answer %q, %v", when, from, name, err)
			}
		}
	}
	write("mode: userspace\nbindAddress: " + alt.String() + "\n")
	n.start("--config", file)
	check("at first")
	if !listens() {
		t.Fatal("nothing listens at the address that was given")
	}
	change := func(text, how, port string) {
		t.Helper()
		before := n.pid()
		write(text)
		n.Eventually("another process serves", func() bool { return n.pid() != before && !testbed.Alive(before) })
		n.Eventually("its rules are written", func() bool {
			steered := n.Steered()
			return strings.Contains(steered, how) && strings.Contains(steered, "10.96.0.10 . udp . 53 : "+port)
		})
		check(text)
	}
	change("mode: userspace\nbindAddress: 0.0.0.0\n", "redirect to", "")
	n.Eventually("nothing listens at the old address", func() bool { return !listens() })
	change("mode: userspace\nbindAddress: "+alt.String()+"\n", "dnat to "+alt.String(), "")
	change("mode: userspace\nbindAddress: "+alt.String()+"\nportRange: 31000-31009\n", "dnat to "+alt.String(), "3100")
}

// TestPortRangeChanges: UDP flows go on, with their endpoints, when the proxy ports that their packets are sent to
// change. What is under way at that moment may be lost.
func TestPortRangeChanges(t *testing.T) {
	testbed.Race(t)
	t.Parallel()
	const flows = 10
	n := newLine(t, testbed.Config{})
	g := emptyLoad(n.Lab)
	t.Cleanup(g.end)
	g.serveDNS()
	file, write := lab.ConfigFile(t)
	ports := func(tens int) string { return fmt.Sprintf("mode: userspace\nportRange: 31%d0-31%d9\n", tens, tens) }
	write(ports(10))
	n.start("--config", file)
	for range flows {
		g.ask(lab.DNSAddr)
	}
	const changes = 3
	for i := range changes {
		before := n.pid()
		write(ports(11 + i))
		n.Eventually("another process serves", func() bool { return n.pid() != before && !testbed.Alive(before) })
		port := fmt.Sprintf(" : 31%d", 11+i)
		n.Eventually("its rules are written", func() bool { return strings.Contains(n.Steered(), port) })
		n.Eventually("all clients have come by them", func() bool {
			return n.Metric(`sluice_connections_total{protocol="UDP",result="established"}`) >= float64((2+i)*flows)
		})
	}
	g.end()
	sent, lost, strange := g.settled()
	t.Logf("%d datagrams in %d flows, %d lost", sent, flows, lost)
	if strange != 0 {
		t.Errorf("%d UDP answers came from elsewhere, twice, or were errors", strange)
	}
	if most := int64(changes * flows * 10); lost > most { // those of 0.2 s
		t.Errorf("%d datagrams were lost, want %d at most", lost, most)
	}
	if got := n.Metric(`sluice_connections_total{protocol="UDP",result="established"}`); got != (1+changes)*flows {
		t.Errorf("%v flows were made for %d clients: the test tests nothing", got, flows)
	}
}
