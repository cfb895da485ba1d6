package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/process/command"
	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/kernelmodes/ipvs"
)

const (
	// ProgramVar makes the test binary the program itself, so that the whole of it runs as it
	// is compiled here, under the race detector too. Its value is the lab's folder, by which
	// all its processes are known.
	ProgramVar = "SLUICE_TEST_PROGRAM"
	// rootVar has the test binary become the program in a root file system, and
	// manifestsVar names the folder that it sees there.
	rootVar      = "SLUICE_TEST_ROOT"
	manifestsVar = "SLUICE_TEST_MANIFESTS"

	// WebIP is the cluster IP of the Service of ServeWeb.
	WebIP = "10.96.0.80"
	// WebAddr is its address with its port.
	WebAddr = WebIP + ":80"
	// DNSAddr is that of the Service of ServeDNS.
	DNSAddr = "10.96.0.10:53"
)

// Capabilities are those of deploy/base/daemonset.yaml.
var Capabilities = []uintptr{unix.CAP_NET_ADMIN, unix.CAP_NET_RAW, unix.CAP_NET_BIND_SERVICE, unix.CAP_SYS_RESOURCE}

// Main is TestMain of packages whose tests use a Lab: it runs the tests, or the program, or one of more programs.
func Main(m *testing.M, more ...testbed.Programs) int {
	if root := os.Getenv(rootVar); root != "" {
		pod := testbed.Container{Root: root, Program: "/usr/local/bin/sluice", Capabilities: Capabilities,
			Volume: os.Getenv(manifestsVar)}
		fmt.Fprintln(os.Stderr, pod.Exec(os.Args[1:], []string{"PATH=" + os.Getenv("PATH")}))
		return 1
	}
	if os.Getenv(ProgramVar) != "" {
		return command.Main(command.Build{Version: "test"}, os.Args[1:], os.Stdout, os.Stderr)
	}
	return testbed.Main(m, more...)
}

// Lab is a small cluster with Sluice on its node, fed from a folder. The fields between T and
// Log may be set before Start.
type Lab struct {
	*testbed.Testbed
	T   *testing.T
	Dir string // of manifests

	Wrap  []string // command that runs the program
	Limit int      // RLIMIT_NOFILE of the program; 0 for the test's own
	Root  string   // of the image that the program runs in; empty for none
	Path  string   // where the program looks for programs there
	Mode  string   // --proxy-mode; empty for the default
	By    string   // --packet-filter; empty for the default
	File  *os.File // where the log goes in place of Log, if successors write it too
	env   []string // of the program, besides the test's own

	Log     testbed.Buffer
	Process *testbed.Process // nil while none runs
}

// New makes a cluster in which the program does not run yet. It ends with the test, which
// fails if any process of the program is left running.
func New(t *testing.T, cfg testbed.Config) *Lab {
	t.Helper()
	return On(t, testbed.NewT(t, cfg))
}

// Remote returns a Lab of the same hosts, whose node is the remote one, with a program and manifests of its own.
func (l *Lab) Remote() *Lab {
	return On(l.T, &testbed.Testbed{Client: l.Client, Clients: l.Clients, Node: l.RemoteNode, Pods: l.RemotePods,
		RemoteNode: l.Node, RemotePods: l.Pods})
}

// On returns a Lab of hosts that are there. It needs their node.
func On(t *testing.T, hosts *testbed.Testbed) *Lab {
	l := &Lab{T: t, Testbed: hosts, Dir: t.TempDir()}
	t.Cleanup(func() {
		if l.Process != nil {
			l.Process.Stop(syscall.SIGKILL)
		}
		l.endProcesses()
		if t.Failed() {
			t.Logf("the program's log:\n%s", l.Log.String())
		}
	})
	return l
}

// endProcesses waits for every process of the lab to end, and kills those that have not.
func (l *Lab) endProcesses() {
	var left []int
	_ = testbed.Poll(context.Background(), testbed.Patience, "all processes to end", func() (bool, error) {
		left = l.Processes()
		return len(left) == 0, nil
	})
	for _, pid := range left {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		l.T.Errorf("process %d is left running: %q", pid, line)
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// Processes returns the processes of the program in this lab, whosever children they are.
func (l *Lab) Processes() (pids []int) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		l.T.Fatal(err)
	}
	mark := []byte(ProgramVar + "=" + l.Dir + "\x00")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if env, err := os.ReadFile("/proc/" + e.Name() + "/environ"); err == nil && bytes.Contains(env, mark) &&
			testbed.Alive(pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// NeedMode skips a test that needs ip_vs where the kernel has none, or fails it if
// SLUICE_REQUIRE_IPVS is 1, as with make test-vm.
func NeedMode(t *testing.T, mode string) {
	t.Helper()
	if mode == "ipvs" {
		if err := ipvs.Present(t.Context()); err != nil {
			testbed.MissingUnless(t, "SLUICE_REQUIRE_IPVS", err.Error())
		}
	}
}

// EachMode runs a test in each of some modes, in parallel.
func EachMode(t *testing.T, modes []string, test func(t *testing.T, mode string)) {
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			NeedMode(t, mode)
			test(t, mode)
		})
	}
}

// Command is the program on the node, not started.
func (l *Lab) Command(args ...string) *testbed.Cmd {
	name, argv := os.Args[0], args
	if l.Limit > 0 {
		argv = append([]string{fmt.Sprintf("--nofile=%d", l.Limit), name}, args...)
		name = "prlimit"
	}
	if l.Wrap != nil {
		argv = append(append(l.Wrap[1:len(l.Wrap):len(l.Wrap)], name), argv...)
		name = l.Wrap[0]
	}
	cmd := l.Node.Command(context.Background(), name, argv...)
	cmd.Env = append(os.Environ(), ProgramVar+"="+l.Dir)
	if l.Root != "" {
		cmd.Env = append(cmd.Env, rootVar+"="+l.Root, manifestsVar+"="+l.Dir, "PATH="+l.Path)
	}
	cmd.Env = append(cmd.Env, l.env...)
	return cmd
}

// Start runs the program with the lab's folder until it reports that it is healthy. Its log
// starts anew.
func (l *Lab) Start(args ...string) {
	l.T.Helper()
	if l.Mode != "" {
		args = append([]string{"--proxy-mode", l.Mode}, args...)
	}
	if l.By != "" {
		args = append([]string{"--packet-filter", l.By}, args...)
	}
	l.Launch(l.Command(append([]string{"--manifests", l.Dir}, args...)...))
	if err := l.Process.Healthy(context.Background(), testbed.HealthURL); err != nil {
		l.T.Fatal(err)
	}
}

// Launch runs a Command as the program of this lab, and does not wait.
func (l *Lab) Launch(cmd *testbed.Cmd) {
	l.T.Helper()
	l.Log.Reset()
	cmd.Stdout, cmd.Stderr = &l.Log, &l.Log
	if l.File != nil {
		cmd.Stdout, cmd.Stderr = l.File, l.File
	}
	var err error
	if l.Process, err = cmd.Launch(); err != nil {
		l.T.Fatal(err)
	}
}

// HandOver runs the program anew with the lab's folder, to take over from the one that runs, and waits for the end of
// that. If it does not end, both say what their goroutines do.
func (l *Lab) HandOver(args ...string) {
	l.T.Helper()
	before := l.Process
	l.Launch(l.Command(append([]string{"--manifests", l.Dir}, args...)...))
	select {
	case <-before.Done():
	case <-time.After(testbed.Patience):
		before.Stop(syscall.SIGQUIT)
		l.Process.Stop(syscall.SIGQUIT)
		l.T.Fatalf("the process before has not ended: %s", l.Log.String())
	}
}

// Signal sends a signal to the program.
func (l *Lab) Signal(s syscall.Signal) { l.Process.Signal(s) }

// Wait waits for the end of the program and returns its exit code, -1 if a signal ended it.
func (l *Lab) Wait() int {
	l.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testbed.Patience)
	defer cancel()
	err := l.Process.Wait(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		l.T.Fatal(err)
	}
	l.Process = nil
	return testbed.ExitCode(err)
}

// Get asks the program over HTTP, on the node. Code 0: it cannot be asked. If it does not answer for
// [testbed.Patience], it says what its goroutines do, in its log, and ends.
func (l *Lab) Get(url string) (int, string) {
	ctx, cancel := context.WithTimeout(context.Background(), testbed.Patience)
	defer cancel()
	code, body, err := l.Node.Get(ctx, url)
	if errors.Is(err, context.DeadlineExceeded) {
		for _, pid := range l.Processes() {
			_ = syscall.Kill(pid, syscall.SIGQUIT)
		}
	}
	if err != nil {
		return 0, err.Error()
	}
	return code, body
}

// Metric returns the value of a series, named as /metrics writes it.
func (l *Lab) Metric(series string) float64 {
	l.T.Helper()
	_, page := l.Get(testbed.MetricsURL)
	return testbed.Metric(l.T, page, series)
}

// Apply makes a change of manifests and waits until it is in force.
func (l *Lab) Apply(change func()) {
	l.T.Helper()
	const applied = `kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv4"}`
	before := l.Metric(applied)
	change()
	l.Eventually("the change is in force", func() bool { return l.Metric(applied) > before })
}

// Eventually waits for a state that no event reports.
func (l *Lab) Eventually(what string, is func() bool) {
	l.T.Helper()
	testbed.Eventually(l.T, what, is)
}

// Write replaces a manifest at once.
func (l *Lab) Write(name string, documents ...string) {
	l.T.Helper()
	if err := testbed.WriteManifest(l.Dir, name, documents...); err != nil {
		l.T.Fatal(err)
	}
}

// Output runs a command on the node and returns what it prints.
func (l *Lab) Output(name string, args ...string) string {
	l.T.Helper()
	out, err := l.Node.Command(l.T.Context(), name, args...).Output()
	if err != nil {
		l.T.Fatalf("%s: %v", name, err)
	}
	return string(out)
}

// ServeWeb makes every pod answer TCP connections with its name, as Service web.
func (l *Lab) ServeWeb() (servers []*testbed.Server) {
	l.T.Helper()
	for _, pod := range l.Pods {
		servers = append(servers, testbed.Keep(l.T)(pod.WhoTCP(":8080")))
	}
	l.PublishWeb()
	return servers
}

// ServeEcho makes every pod echo TCP connections, as Service web.
func (l *Lab) ServeEcho() {
	l.T.Helper()
	for _, pod := range l.Pods {
		testbed.Keep(l.T)(pod.EchoTCP(":8080"))
	}
	l.PublishWeb()
}

// Publish writes a Service, with annotations as of testbed.Annotated, and its endpoints: a port of pods.
func (l *Lab) Publish(name, address, protocol, annotations string, port int, pods ...*testbed.Host) {
	l.T.Helper()
	l.Write(name+".yaml", testbed.Annotated(testbed.ServiceManifest(name, address, protocol, ""), annotations),
		testbed.SliceManifest(name, 1, port, protocol, testbed.Addrs(pods...)...))
}

// PublishWeb writes Service web, with every pod's port 8080.
func (l *Lab) PublishWeb() {
	l.T.Helper()
	l.Publish("web", WebAddr, "TCP", "", 8080, l.Pods...)
}

// ServeDNS makes every pod answer datagrams with its name, as Service dns.
func (l *Lab) ServeDNS() (servers []*testbed.Server) {
	l.T.Helper()
	for _, pod := range l.Pods {
		servers = append(servers, testbed.Keep(l.T)(pod.WhoUDP(pod.Addr4.String()+":5353")))
	}
	l.Publish("dns", DNSAddr, "UDP", "", 5353, l.Pods...)
	return servers
}

// Hold opens a connection to the Service of ServeEcho, until the test ends.
func (l *Lab) Hold() *testbed.Talker {
	l.T.Helper()
	c, err := l.Client.Dial(l.T.Context(), "tcp", WebAddr)
	if err != nil {
		l.T.Fatal(err)
	}
	l.T.Cleanup(func() { _ = c.Close() })
	return &testbed.Talker{T: l.T, Conn: c}
}
