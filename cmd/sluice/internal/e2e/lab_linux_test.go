package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/bench/testbed"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/command"
	"github.com/sluice-lb/sluice/kernelmodes/ipvs"
)

const (
	// programVar has the test binary be the program itself, so that the whole of it
	// runs as it is compiled here, under the race detector too. Its value is the lab's
	// folder, by which all its processes are known.
	programVar = "SLUICE_TEST_PROGRAM"

	webIP   = "10.96.0.80"
	webAddr = webIP + ":80"
	dnsAddr = "10.96.0.10:53"
)

// patience is how long a test waits for what must happen.
const patience = 20 * time.Second

func TestMain(m *testing.M) {
	if root := os.Getenv(rootVar); root != "" {
		err := enter(root) // does not return if it succeeds
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if os.Getenv(programVar) != "" {
		os.Exit(command.Main("test", os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(testbed.Main(m))
}

// lab is a small cluster with Sluice on its node, fed from a folder.
type lab struct {
	*testbed.Testbed
	t       *testing.T
	dir     string
	wrap    []string // command that runs it
	program string   // that runs; empty for this one
	limit   int      // RLIMIT_NOFILE of the program; 0 for the test's own
	root    string   // of the image that the program runs in; empty for none
	path    string   // where it looks for programs there
	mode    string   // --proxy-mode; empty for the default
	env     []string // of the program, besides the test's own
	cmd     *testbed.Cmd
	exited  chan struct{}
	log     testbed.Buffer
	file    *os.File // where the log goes instead, if successors write it too
}

func newLab(t *testing.T, cfg testbed.Config) *lab {
	t.Helper()
	l := &lab{t: t, Testbed: testbed.NewT(t, cfg), dir: t.TempDir()}
	t.Cleanup(func() {
		if l.cmd != nil {
			l.signal(syscall.SIGKILL)
			<-l.exited
		}
		l.nobodyLeft()
		if t.Failed() {
			t.Logf("the program's log:\n%s", l.log.String())
		}
	})
	return l
}

// nobodyLeft wants every process of the lab to have ended, and ends those that have not.
func (l *lab) nobodyLeft() {
	left := l.processes()
	for deadline := time.Now().Add(patience); len(left) > 0 && time.Now().Before(deadline); left = l.processes() {
		time.Sleep(2 * time.Millisecond) // nobody is told of the end of who is nobody's child
	}
	for _, pid := range left {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		l.t.Errorf("process %d is left running: %q", pid, line)
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// processes returns the processes of the program in this lab, whosever children they are.
func (l *lab) processes() (pids []int) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		l.t.Fatal(err)
	}
	mark := []byte(programVar + "=" + l.dir + "\x00")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if env, err := os.ReadFile("/proc/" + e.Name() + "/environ"); err == nil && bytes.Contains(env, mark) && alive(pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// needMode skips a test that needs ip_vs where the kernel has none, or fails it if
// SLUICE_REQUIRE_IPVS is 1, as with make test-vm.
func needMode(t *testing.T, mode string) {
	t.Helper()
	if mode != "ipvs" {
		return
	}
	switch err := ipvs.Present(t.Context()); {
	case err == nil:
	case os.Getenv("SLUICE_REQUIRE_IPVS") == "1":
		t.Fatalf("cannot test: %v", err)
	default:
		t.Skipf("NOT TESTED: %v (make test-vm tests it; SLUICE_REQUIRE_IPVS=1 makes this a failure)", err)
	}
}

// virtualServers is what ipvsadm says of the node, without counts; nothing where the
// kernel has no ip_vs.
func (l *lab) virtualServers() string {
	if _, err := os.Stat("/proc/net/ip_vs"); err != nil {
		return ""
	}
	return l.output("ipvsadm", "-Sn")
}

// command is the program on the node, not started.
func (l *lab) command(args ...string) *testbed.Cmd {
	name, argv := os.Args[0], args
	if l.program != "" {
		name = l.program
	}
	if l.limit > 0 {
		argv = append([]string{fmt.Sprintf("--nofile=%d", l.limit), name}, args...)
		name = "prlimit"
	}
	if l.wrap != nil {
		argv = append(append(l.wrap[1:len(l.wrap):len(l.wrap)], name), argv...)
		name = l.wrap[0]
	}
	cmd := l.Node.Command(context.Background(), name, argv...)
	cmd.Env = append(os.Environ(), programVar+"="+l.dir)
	if l.root != "" {
		cmd.Env = append(cmd.Env, rootVar+"="+l.root, manifestsVar+"="+l.dir, "PATH="+l.path)
	}
	cmd.Env = append(cmd.Env, l.env...)
	return cmd
}

// start runs the program with the lab's folder until it says that it is healthy.
// Its log begins anew.
func (l *lab) start(args ...string) {
	l.t.Helper()
	l.log.Reset()
	if l.mode != "" {
		args = append([]string{"--proxy-mode", l.mode}, args...)
	}
	cmd := l.command(append([]string{"--manifests", l.dir}, args...)...)
	cmd.Stdout, cmd.Stderr = &l.log, &l.log
	if l.file != nil {
		cmd.Stdout, cmd.Stderr = l.file, l.file
	}
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	l.cmd, l.exited = cmd, make(chan struct{})
	go func() {
		_ = cmd.Wait() // the exit code is read from the state
		close(l.exited)
	}()
	l.eventually("the program is healthy", func() bool {
		select {
		case <-l.exited:
			l.t.Fatalf("the program has ended: %v", cmd.ProcessState)
		default:
		}
		code, _ := l.get("http://127.0.0.1:10256/healthz")
		return code == http.StatusOK
	})
}

func (l *lab) signal(s syscall.Signal) { _ = l.cmd.Process.Signal(s) }

// wait waits for the end of the program and returns its exit code, -1 if a signal ended it.
func (l *lab) wait() int {
	l.t.Helper()
	select {
	case <-l.exited:
		code := l.cmd.ProcessState.ExitCode()
		l.cmd = nil
		return code
	case <-time.After(patience):
		l.t.Fatal("the program does not end")
		return 0
	}
}

// get asks the program over HTTP, on the node. Code 0: it cannot be asked.
func (l *lab) get(url string) (int, string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	code, body, err := l.Node.Get(ctx, url)
	if err != nil {
		return 0, err.Error()
	}
	return code, body
}

// metric returns the value of a series, named as /metrics writes it.
func (l *lab) metric(series string) float64 {
	l.t.Helper()
	_, page := l.get("http://127.0.0.1:10249/metrics")
	value, ok := testbed.Series(page, series)
	if !ok {
		l.t.Fatalf("no metric %s in:\n%s", series, page)
	}
	return value
}

// eventually waits until what is true, for what no event tells.
func (l *lab) eventually(what string, is func() bool) {
	l.t.Helper()
	for deadline := time.Now().Add(patience); !is(); {
		if time.Now().After(deadline) {
			l.t.Fatalf("not within %v: %s", patience, what)
		}
		time.Sleep(2 * time.Millisecond) // a pause between two looks
	}
}

// write replaces a manifest as an editor does, at once.
func (l *lab) write(name string, docs ...string) {
	l.t.Helper()
	tmp := filepath.Join(l.dir, "."+name)
	if err := os.WriteFile(tmp, []byte(strings.Join(docs, "---\n")), 0o644); err != nil {
		l.t.Fatal(err)
	}
	if err := os.Rename(tmp, filepath.Join(l.dir, name)); err != nil {
		l.t.Fatal(err)
	}
}

// service is the manifest of a Service with one port.
func service(name, addr, protocol, more string) string {
	ip, port, _ := strings.Cut(addr, ":")
	return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata:\n  name: %s\nspec:\n  clusterIP: %s\n  ports:\n  - port: %s\n    protocol: %s\n%s",
		name, ip, port, protocol, more)
}

// slice is the manifest of a Service's EndpointSlice; each endpoint is ready.
func slice(service string, n int, port int, protocol string, addrs ...string) string {
	s := fmt.Sprintf("apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: %s-%d\n  labels:\n    kubernetes.io/service-name: %s\n"+
		"addressType: IPv4\nports:\n- port: %d\n  protocol: %s\nendpoints:", service, n, service, port, protocol)
	if len(addrs) == 0 {
		return s + " []\n"
	}
	for _, a := range addrs {
		s += fmt.Sprintf("\n- addresses: [%s]", a)
	}
	return s + "\n"
}

// addrs returns the IPv4 addresses of hosts.
func addrs(hosts ...*testbed.Host) (out []string) {
	for _, h := range hosts {
		out = append(out, h.Addr4.String())
	}
	return out
}

// serveWeb has every pod answer TCP connections with its name, as Service web.
func (l *lab) serveWeb() (servers []*testbed.Server) {
	l.t.Helper()
	for _, pod := range l.Pods {
		servers = append(servers, keep(l.t)(pod.WhoTCP(":8080")))
	}
	l.write("web.yaml", service("web", webAddr, "TCP", ""), slice("web", 1, 8080, "TCP", addrs(l.Pods...)...))
	return servers
}

// serveDNS has every pod answer datagrams with its name, as Service dns.
func (l *lab) serveDNS() (servers []*testbed.Server) {
	l.t.Helper()
	for _, pod := range l.Pods {
		servers = append(servers, keep(l.t)(pod.WhoUDP(pod.Addr4.String()+":5353")))
	}
	l.write("dns.yaml", service("dns", dnsAddr, "UDP", ""), slice("dns", 1, 5353, "UDP", addrs(l.Pods...)...))
	return servers
}

// keep closes a server when the test ends.
func keep(t *testing.T) func(*testbed.Server, error) *testbed.Server {
	return func(s *testbed.Server, err error) *testbed.Server {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
}

// who connects and returns the name of the pod that answers.
func who(from *testbed.Host, addr string) (string, error) { return whoWithin(patience, from, addr) }

// whoWithin is who for addresses that may not be served yet: a connection that is begun
// before the rules are there comes about a second later at best, when its SYN is sent again.
func whoWithin(d time.Duration, from *testbed.Host, addr string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	c, err := from.Dial(ctx, "tcp", addr)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(d)); err != nil {
		return "", err
	}
	name, err := io.ReadAll(c)
	return strings.TrimSpace(string(name)), err
}

// client is a UDP socket that is connected to a Service, so that only answers
// from the address it asked reach it.
type client struct{ net.Conn }

func newClient(t *testing.T, from *testbed.Host, addr string) client {
	t.Helper()
	c, err := from.Dial(t.Context(), "udp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return client{c}
}

// ask sends a datagram and returns the answer, or "" if there is none within d.
func (c client) ask(msg []byte, d time.Duration) (string, error) {
	if err := c.SetDeadline(time.Now().Add(d)); err != nil {
		return "", err
	}
	if _, err := c.Write(msg); err != nil {
		return "", err
	}
	buf := make([]byte, 65535)
	n, err := c.Read(buf)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return "", nil
	}
	return string(buf[:n]), err
}

// output runs a command on the node and returns what it prints.
func (l *lab) output(name string, args ...string) string {
	l.t.Helper()
	out, err := l.Node.Command(l.t.Context(), name, args...).Output()
	if err != nil {
		l.t.Fatalf("%s: %v", name, err)
	}
	return string(out)
}

// exitCode returns the code that a command ended with.
func exitCode(err error) int {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	return 0
}
