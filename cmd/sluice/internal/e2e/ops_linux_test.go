package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/node"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// TestCleanupLeavesNothing: after a stop and after a crash, in a fresh node and in
// one that has rules of others.
func TestCleanupLeavesNothing(t *testing.T) {
	testbed.VM(t)
	t.Parallel()
	for _, mode := range []string{"userspace", "queue", "nftables", "iptables", "ipvs"} {
		for _, foreign := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, foreign rules %v", mode, foreign), func(t *testing.T) { testCleanup(t, mode, foreign) })
		}
	}
}

func testCleanup(t *testing.T, mode string, foreign bool) {
	t.Parallel()
	lab.NeedMode(t, mode)
	l := lab.New(t, testbed.Config{})
	if foreign {
		l.Output("iptables", "-t", "nat", "-N", "KUBE-SERVICES")
		l.Output("iptables", "-t", "nat", "-A", "PREROUTING", "-j", "KUBE-SERVICES")
		l.Output("iptables", "-A", "INPUT", "-s", "198.51.100.9", "-j", "DROP")
		l.Output("ipset", "create", "theirs", "hash:ip")
	}
	before := l.Traces()
	l.ServeWeb()
	l.ServeDNS()
	for _, end := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		l.Start("--proxy-mode", mode)
		if _, err := l.Client.Who(lab.WebAddr); err != nil {
			t.Fatal(err)
		}
		l.Signal(end)
		if code := l.Wait(); end == syscall.SIGTERM && code != 0 {
			t.Errorf("exit code %d after SIGTERM, want 0", code)
		}
		if l.Traces() == before {
			t.Error("the program left no rule: the test tests nothing")
		}
		for range 2 { // the second finds nothing to do
			if out, err := l.Command("--cleanup").CombinedOutput(); err != nil || len(out) > 0 {
				t.Errorf("--cleanup = %v, %s", err, out)
			}
		}
		if after := l.Traces(); after != before {
			t.Errorf("after %v and --cleanup:\n%s\nbefore the first start:\n%s", end, after, before)
		}
	}
}

// TestRestartAfterCrash: the next start takes over what the last one left.
func TestRestartAfterCrash(t *testing.T) {
	t.Parallel()
	l := lab.New(t, testbed.Config{})
	l.ServeWeb()
	l.ServeDNS()
	l.Start()
	steered := l.Traces()
	l.Signal(syscall.SIGKILL)
	l.Wait()
	l.Start()
	if name, err := l.Client.Who(lab.WebAddr); err != nil || name == "" {
		t.Errorf("after the restart TCP gives %q, %v", name, err)
	}
	if name, err := l.Client.TryAsk("udp", lab.DNSAddr, testbed.Patience); err != nil || name == "" {
		t.Errorf("after the restart UDP gives %q, %v", name, err)
	}
	lines := func(s string) int { return strings.Count(s, "\n") }
	if now := l.Traces(); lines(now) != lines(steered) {
		t.Errorf("rules have piled up:\n%s\nafter the first start:\n%s", now, steered)
	}
}

// TestStop: SIGTERM lets an open connection go on, and new ones are refused where --on-exit says so, forwarded by the
// kernel, or accepted while others drain if it forwards nothing.
func TestStop(t *testing.T) {
	testbed.Race(t)
	t.Parallel()
	for _, how := range []string{"refuse", "offload", "accept"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			l := lab.New(t, testbed.Config{Pods: 1})
			l.ServeEcho()
			dial := func() bool {
				c, err := l.Client.Dial(t.Context(), "tcp", lab.WebAddr)
				if err == nil {
					talker := &testbed.Talker{T: t, Conn: c}
					talker.Echoes()
					c.Close()
				}
				return err == nil
			}
			flag := "--on-exit=offload"
			switch how {
			case "refuse":
				flag = "--on-exit=refuse"
			case "accept":
				testbed.Check(t, l.Node.Sysctl("net.ipv4.ip_forward", "0"))
			}
			l.Start(flag)
			held := l.Hold()
			held.Echoes()
			l.Signal(syscall.SIGTERM)
			said := map[string]string{"refuse": "draining", "offload": "the kernel forwards new connections",
				"accept": "still accepting connections"}[how]
			l.Eventually(said, func() bool { return strings.Contains(l.Log.String(), said) })
			if how == "refuse" {
				l.Eventually("new connections are refused", func() bool { return !dial() })
			} else if !dial() {
				t.Error("a new connection was refused")
			}
			if code, _ := l.Get("http://127.0.0.1:10256/healthz"); code != 503 {
				t.Errorf("/healthz while stopping = %d, want 503", code)
			}
			if how == "accept" && l.Metric(`sluice_connections_total{protocol="TCP",result="established"}`) != 2 {
				t.Error("the new connection was not accepted in user space")
			}
			held.Echoes()
			held.Close()
			if code := l.Wait(); code != 0 {
				t.Errorf("exit code %d, want 0", code)
			}
			if dial() != (how == "offload") {
				t.Errorf("after the end a connection is forwarded: %v", how != "offload")
			}
		})
	}
}

func TestDrainTimeoutAndSecondSignal(t *testing.T) {
	l := lab.New(t, testbed.Config{Pods: 1})
	l.ServeEcho()
	for _, test := range []struct {
		drain  string
		second bool
		want   int
	}{{"50ms", false, 0}, {"1h", true, 1}} {
		l.Start("--drain-timeout", test.drain)
		held := l.Hold()
		l.Eventually("the connection is there", func() bool {
			return l.Metric(`sluice_active_connections{protocol="TCP"}`) == 1
		})
		l.Signal(syscall.SIGTERM)
		if test.second {
			l.Eventually("the first signal was taken", func() bool { return strings.Contains(l.Log.String(), "stopping") })
			l.Signal(syscall.SIGTERM)
		}
		if code := l.Wait(); code != test.want {
			t.Errorf("drain timeout %s: exit code %d, want %d", test.drain, code, test.want)
		}
		held.Close()
	}
}

// TestLiveManifests: changes come into force, broken files do not, and are named.
func TestLiveManifests(t *testing.T) {
	testbed.Race(t)
	l := lab.New(t, testbed.Config{})
	l.ServeWeb()
	l.Start()
	ask := func(want ...string) {
		t.Helper()
		for range 6 {
			if name, err := l.Client.Who(lab.WebAddr); err != nil || !slices.Contains(want, name) {
				t.Fatalf("answer %q, %v; want one of %v", name, err, want)
			}
		}
	}
	ask("pod-0", "pod-1", "pod-2")
	var delays []time.Duration
	for i := range 10 { // one endpoint and another in turn
		pod := l.Pods[1+i%2]
		l.Publish("web", lab.WebAddr, "TCP", "", 8080, pod)
		written := time.Now()
		l.Eventually("the change is in force", func() bool {
			for range 2 { // turns never give a Service of three the same endpoint twice in a row
				name, err := l.Client.Who(lab.WebAddr)
				testbed.Check(t, err)
				if name != pod.Name {
					return false
				}
			}
			return true
		})
		delays = append(delays, time.Since(written))
		ask(pod.Name)
	}
	slices.Sort(delays)
	t.Logf("from the write of a file to the first client that sees it: median %v, longest %v", delays[len(delays)/2], delays[len(delays)-1])

	broken := strings.Replace(testbed.ServiceManifest("web", lab.WebAddr, "TCP", ""), "clusterIP", "clusterPI", 1)
	l.Write("web.yaml", broken)
	l.Eventually("the broken file is reported", func() bool {
		_, page := l.Get("http://127.0.0.1:10249/metrics")
		return strings.Contains(page, `sluice_manifest_problems{file="`+filepath.Join(l.Dir, "web.yaml")+`",reason="invalid"} 1`)
	})
	if log := l.Log.String(); !strings.Contains(log, "web.yaml:6: ") || !strings.Contains(log, "clusterPI") {
		t.Error("the log does not name the file, the line and the field")
	}
	ask("pod-2")
	l.Publish("web", lab.WebAddr, "TCP", "", 8080, l.Pods[0])
	l.Eventually("the repaired file is in force", func() bool {
		name, err := l.Client.Who(lab.WebAddr)
		return err == nil && name == "pod-0"
	})
	testbed.Check(t, os.Remove(filepath.Join(l.Dir, "web.yaml")))
	l.Eventually("the removed Service is gone", func() bool { return l.Metric("sluice_services") == 0 })
}

// TestBadInput: one clear sentence with the place and the fix, and exit code 1.
func TestBadInput(t *testing.T) {
	t.Parallel()
	l := lab.New(t, testbed.Config{Pods: 1})
	good := testbed.ServiceManifest("web", lab.WebAddr, "TCP", "")
	dir := func(name string, docs ...string) string {
		l.Write(name, docs...)
		return filepath.Join(l.Dir, name)
	}
	before := l.Traces()
	wrongFamily := strings.Replace(testbed.SliceManifest("web", 1, 80, "TCP", `"2001:db8::1"`), "IPv6", "IPv4", 1)
	for _, test := range []struct {
		name string
		args []string
		want []string
	}{
		{"no arguments", nil, []string{"--manifests"}},
		{"wrong port range", []string{"--manifests", l.Dir, "--proxy-port-range", "9-5"}, []string{"--proxy-port-range", "9-5"}},
		{"unreadable folder", []string{"--manifests", "/no/such/folder"}, []string{"/no/such/folder", "no such file"}},
		{"unknown field", []string{"check", "--strict", dir("a.yaml", strings.Replace(good, "protocol", "protocoll", 1))},
			[]string{"a.yaml:9", "protocoll"}},
		{"duplicate Service", []string{"check", dir("b.yaml", good, good)}, []string{"b.yaml:", "web", "b.yaml:1"}},
		{"port 0", []string{"check", dir("c.yaml", testbed.ServiceManifest("web", lab.WebIP+":0", "TCP", ""))},
			[]string{"c.yaml:8", "port"}},
		{"bad IP", []string{"check", dir("d.yaml", testbed.ServiceManifest("web", "10.96.0.300:80", "TCP", ""))},
			[]string{"d.yaml:6", "10.96.0.300"}},
		{"wrong family", []string{"check", dir("e.yaml", wrongFamily)}, []string{"e.yaml:12", "2001:db8::1", "IPv4"}},
		{"no interface", []string{"--manifests", dir("g.yaml", good), "--proxy-mode", "winuserspace", "--service-interface", "none0"}, []string{"--service-interface none0", "give the name of an interface"}},
		{"no Node", []string{"--manifests", dir("h.yaml", good), "--hostname-override", "a_b"}, []string{"--hostname-override", "kubectl get nodes"}},
		{"content type", []string{"--kube-api-content-type", "json", "--master", "https://192.0.2.1"}, []string{"--kube-api-content-type", "application/json"}},
		{"not YAML", []string{"check", dir("f.yaml", "kind: [")}, []string{"f.yaml:1"}},
		{"no folder for the PID file", []string{"--manifests", dir("g.yaml", good), "--pid-file", filepath.Join(l.Dir, "none", "pid")}, []string{"--pid-file", "give a file in a folder"}},
	} {
		out, err := l.Command(test.args...).CombinedOutput()
		if testbed.ExitCode(err) != 1 {
			t.Errorf("%s: exit %v, want code 1", test.name, err)
		}
		for _, want := range test.want {
			if !strings.Contains(string(out), want) {
				t.Errorf("%s: no %q in %q", test.name, want, out)
			}
		}
		if strings.Contains(string(out), "goroutine") {
			t.Errorf("%s: a stack trace is no answer:\n%s", test.name, out)
		}
	}
	if l.Traces() != before {
		t.Error("a start that failed left something in the kernel")
	}
}

// TestCannotSteer: no iptables, no privileges and no descriptors are said in words, once.
func TestCannotSteer(t *testing.T) {
	t.Parallel()
	l := lab.New(t, testbed.Config{Pods: 1})
	l.Write("web.yaml", testbed.ServiceManifest("web", lab.WebAddr, "TCP", ""))
	noIPTables := l.Command("--manifests", l.Dir, "--packet-filter", "iptables")
	noIPTables.Env = append(noIPTables.Env, "PATH=/nowhere")
	if out, err := noIPTables.CombinedOutput(); testbed.ExitCode(err) != 1 || !strings.Contains(string(out), "iptables") {
		t.Errorf("without iptables: %v, %s", err, out)
	}
	name := noIPTables.Path
	for _, args := range [][]string{{"--manifests", l.Dir}, {"--cleanup"}} {
		noRights := l.Node.Command(t.Context(), "setpriv", append([]string{"--bounding-set=-net_admin,-net_raw", "--inh-caps=-net_admin,-net_raw", name}, args...)...)
		noRights.Env = append(os.Environ(), lab.ProgramVar+"=1")
		if out, err := noRights.CombinedOutput(); testbed.ExitCode(err) != 1 ||
			strings.Count(string(out), "CAP_NET_ADMIN") != 1 {
			t.Errorf("%s without privileges: %v, %s", args, err, out)
		}
	}
	addresses := l.Node.Command(t.Context(), "setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin", name,
		"--proxy-mode=winuserspace", "--manifests", l.Dir)
	addresses.Env = append(os.Environ(), lab.ProgramVar+"=1")
	if out, err := addresses.CombinedOutput(); testbed.ExitCode(err) != 1 ||
		!strings.Contains(string(out), "run as root, or with CAP_NET_ADMIN") {
		t.Errorf("in mode winuserspace without privileges: %v, %s", err, out)
	}
	l.Wrap = []string{"timeout", "30"} // what serves after all ends with 124
	for _, l.Limit = range []int{12, 14, 16, 18, 20, 30} {
		out, err := l.Command("--manifests", l.Dir, "--loops=4").CombinedOutput()
		if testbed.ExitCode(err) != 1 || !strings.Contains(string(out), "(ulimit -n) to 64 or more") {
			t.Errorf("with %d descriptors: %v, %s", l.Limit, err, out)
		}
	}
	l.Wrap, l.Limit = nil, 64
	l.Start("--loops=4") // what the errors name is enough
}

// TestCleanupWithoutIPTables: --cleanup ends well where there is nothing of ours, whatever
// is not installed. Where there is, it removes what iptables-nft has written, and tells which rules of
// iptables-legacy stay.
func TestCleanupWithoutIPTables(t *testing.T) {
	l := lab.New(t, testbed.Config{Pods: 1})
	cleanup := func() (int, string) {
		c := l.Command("--cleanup")
		c.Env = append(c.Env, "PATH=/nowhere")
		out, err := c.CombinedOutput()
		return testbed.ExitCode(err), string(out)
	}
	for _, command := range []string{"iptables-nft", "iptables-legacy", "ip6tables-nft", "ip6tables-legacy"} {
		l.Output(command, "-t", "nat", "-N", "OTHER")
		if code, out := cleanup(); code != 0 || out != "" {
			t.Errorf("with a chain of others by %s: %d, %s", command, code, out)
		}
		l.Output(command, "-t", "nat", "-N", "SLUICE-TEST")
		code, out := cleanup()
		if strings.HasSuffix(command, "-nft") {
			if chains := l.Output(command, "-t", "nat", "-S"); code != 0 || out != "" || strings.Contains(chains, "SLUICE") ||
				!strings.Contains(chains, "OTHER") {
				t.Errorf("with rules by %s: %d, %s\nand then\n%s", command, code, out, chains)
			}
		} else if want := "stay in table nat, since " + command + " is not installed: install"; code != 1 || strings.Count(out, want) != 1 {
			t.Errorf("with rules by %s: %d, %s\nwant %q once", command, code, out, want)
		}
		if out, err := l.Command("--cleanup").CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("with all programs: %v, %s", err, out)
		}
	}
}

// TestTakenPorts: what others have is named, and the program ends.
func TestTakenPorts(t *testing.T) {
	t.Parallel()
	l := lab.New(t, testbed.Config{Pods: 1})
	l.Write("web.yaml", testbed.ServiceManifest("web", lab.WebAddr, "TCP", ""))
	for port, args := range map[string][]string{
		"10256": {"--bind-address-hard-fail"},
		"10249": {"--bind-address-hard-fail"},
		"31000": {"--proxy-port-range", "31000-31000"},
	} {
		ln, err := l.Node.Listen(t.Context(), "tcp4", "0.0.0.0:"+port)
		testbed.Check(t, err)
		out, err := l.Command(append([]string{"--manifests", l.Dir}, args...)...).CombinedOutput()
		fix := "or give another address"
		if port == "31000" {
			fix = "widen --proxy-port-range"
		}
		if testbed.ExitCode(err) != 1 || !strings.Contains(string(out), port) || !strings.Contains(string(out), fix) {
			t.Errorf("with port %s taken: %v, %s", port, err, out)
		}
		ln.Close()
	}
}

// TestOnlyOneSteers: a second Sluice on the host, and a --cleanup, end with one sentence
// and disturb nothing; when the first has been told to end, there is room for the next.
func TestOnlyOneSteers(t *testing.T) {
	t.Parallel()
	l := lab.New(t, testbed.Config{})
	l.ServeWeb()
	l.Start("--packet-filter", "iptables") // whose tables a second one makes to try them
	rules := l.Traces()
	for _, c := range []struct {
		args   []string
		advice string
	}{
		{[]string{"--manifests", l.Dir}, ", or give both the same --handover-socket, in a folder that both see (for pods, " +
			"a hostPath), to take over from it"},
		{[]string{"--cleanup"}, ""},
	} {
		args := c.args
		out, err := l.Command(args...).CombinedOutput()
		want := fmt.Sprintf("another Sluice, process %d, steers the traffic of this network namespace: end it first%s\n",
			l.Process.Pid(), c.advice)
		if testbed.ExitCode(err) != 1 || !strings.HasSuffix(string(out), want) {
			t.Errorf("%v beside another: %v, want its last line to end in %q:\n%s", args, err, want, out)
		}
		if name, err := l.Client.Who(lab.WebAddr); err != nil || name == "" {
			t.Errorf("after %v beside it: %q, %v", args, name, err)
		}
	}
	if now := l.Traces(); now != rules {
		t.Errorf("the rules are\n%s\nand were\n%s", now, rules)
	}
	l.Signal(syscall.SIGKILL)
	l.Wait()
	l.Start()
	if name, err := l.Client.Who(lab.WebAddr); err != nil || name == "" {
		t.Errorf("after the first was killed: %q, %v", name, err)
	}
}

// TestNameIsTaken: a user who may not steer cannot keep others from it.
func TestNameIsTaken(t *testing.T) {
	t.Parallel()
	l := lab.New(t, testbed.Config{})
	l.ServeWeb()
	const nobody = 65534
	const same = ^uintptr(0)
	become := func(uid uintptr) error { // by this thread alone, which Do has locked
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, same, uid, same); errno != 0 {
			return errno
		}
		return nil
	}
	var squatted node.Lock
	if err := l.Node.Do(func() (err error) {
		if err := become(nobody); err != nil {
			return err
		}
		squatted, err = node.NewLock()
		return errors.Join(err, become(uintptr(os.Getuid())))
	}); err != nil {
		t.Fatal(err)
	}
	defer squatted.Release()
	l.Start()
	if name, err := l.Client.Who(lab.WebAddr); err != nil || name == "" {
		t.Errorf("beside a squatter: %q, %v", name, err)
	}
}

// TestNotOurAddress: an address to listen on that the node does not have is named.
func TestNotOurAddress(t *testing.T) {
	t.Parallel()
	l := lab.New(t, testbed.Config{})
	out, err := l.Command("--manifests", l.Dir, "--bind-address", "198.51.100.9").CombinedOutput()
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if last := lines[len(lines)-1]; testbed.ExitCode(err) != 1 ||
		!strings.Contains(last, "--bind-address 198.51.100.9") || !strings.Contains(last, "give") {
		t.Errorf("%v: %q names no flag or no fix", err, last)
	}
}
