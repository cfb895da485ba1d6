package command

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/redirect/addresses"
)

// programVar has the test binary be the program.
const programVar = "SLUICE_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(programVar) != "" {
		os.Exit(Main(Build{Version: "test"}, os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// process starts the program as a process of its own, and waits until it is healthy.
func (s *standalone) process(args ...string) *exec.Cmd {
	s.t.Helper()
	s.health = fmt.Sprintf("127.0.0.1:%d", freePort(s.t))
	cmd := child(append([]string{"--manifests", s.dir, "--healthz-bind-address", s.health, "--metrics-bind-address", ""}, args...)...)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		_ = cmd.Process.Kill() // of those that have ended, no more than an error
		_ = cmd.Wait()
		if s.t.Failed() {
			s.t.Logf("the program said:\n%s", log.String())
		}
	})
	s.eventually("the program is healthy", s.healthy)
	return cmd
}

func child(args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), programVar+"=1")
	return cmd
}

// kill ends a process without a word to it.
func kill(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
}

// has reports whether the host has an address.
func has(ip string) bool {
	l, err := net.Listen("tcp", net.JoinHostPort(ip, "0"))
	if err != nil {
		return false
	}
	return l.Close() == nil
}

// TestAddressesAndCrash: Services on addresses that the host is given. One of two ports goes
// and the other stays reachable; a process that is killed leaves no address over, and the
// next loses none; --cleanup removes all.
func TestAddressesAndCrash(t *testing.T) {
	probe := &addresses.Set{}
	err := probe.Sync(t.Context(), []netip.Addr{netip.MustParseAddr("10.96.255.250")})
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skipf("SKIPPED: %v", err)
	}
	if err := errors.Join(err, probe.Sync(t.Context(), nil)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := addresses.Cleanup(t.Context()); err != nil {
			t.Error(err)
		}
	})
	s := &standalone{t: t, dir: t.TempDir()}
	a := backend(t, "a")
	nodePort := freePort(t)
	two := webManifest("10.96.0.7", nodePort, a)
	s.write("web.yaml", two)
	first := s.process("--udp-timeout", "50ms")
	answers := func(network, addr string) {
		t.Helper()
		s.eventually(network+" "+addr+" answers", func() bool { got, err := ask(network, addr); return err == nil && got == "a hello" })
	}
	answers("tcp", "10.96.0.7:8080")
	answers("udp", "10.96.0.7:8080")

	one := strings.ReplaceAll(two, fmt.Sprintf("  - {name: udp, port: 8080, protocol: UDP, nodePort: %d}\n", nodePort), "")
	s.write("web.yaml", one)
	s.eventually("the port of UDP is closed", func() bool { _, err := ask("udp", "10.96.0.7:8080"); return err != nil })
	answers("tcp", "10.96.0.7:8080")

	kill(t, first)
	if !has("10.96.0.7") {
		t.Error("the address went with the process that was killed")
	}
	s.write("web.yaml", webManifest("10.96.0.8", nodePort, a))
	second := s.process()
	answers("tcp", "10.96.0.8:8080")
	if has("10.96.0.7") {
		t.Error("an address of the process that was killed is left over")
	}
	kill(t, second)
	for range 2 {
		if out, err := child("--cleanup").CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("--cleanup = %v, %s", err, out)
		}
	}
	if has("10.96.0.8") {
		t.Error("--cleanup left an address over")
	}
}

// TestCommandLine: what there is not on Windows is said so, and mistakes are told.
func TestCommandLine(t *testing.T) {
	s := &standalone{t: t, dir: t.TempDir()}
	s.write("web.yaml", webManifest("10.96.0.7", 30080))
	log := filepath.Join(t.TempDir(), "sluice.log")
	from := "--manifests=" + s.dir
	for _, x := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"upgrade"}, 1, "connections are handed over on Linux only"},
		{[]string{"--nosuch"}, 1, "unknown flag: --nosuch"},
		{[]string{from, "--proxy-mode=ipvs"}, 1, "--proxy-mode ipvs: unsupported operation: give winuserspace"},
		{[]string{from, "--service-interface=nosuch"}, 1, `find interface "nosuch"`},
		{[]string{from, "--sctp-engine=packet"}, 1, "--sctp-engine=packet"},
		{[]string{from, "--pid-file=x", "--init-only"}, 0, "--pid-file are ignored"},
		{[]string{from, "--init-only"}, 0, "needs nothing set up"},
		{[]string{"explain", from, "default/web"}, 0, "TCP 10.96.0.7:8080 belongs to default/web"},
		{[]string{"explain", from, "--proxy-mode=winuserspace", "default/web"}, 0, "data path userspace"},
		{[]string{from, "--windows-service", "--logtostderr=false", "--log-file=" + log}, 1, "talk to the service manager"},
	} {
		var out bytes.Buffer
		if code := Main(Build{Version: "test"}, x.args, &out, &out); code != x.code || !strings.Contains(out.String(),
			x.want) {
			t.Errorf("sluice %s = %d, want %d with %q; it says:\n%s", strings.Join(x.args, " "), code, x.code, x.want, out.String())
		}
	}
	if b, err := os.ReadFile(log); err != nil || !bytes.Contains(b, []byte("talk to the service manager")) {
		t.Errorf("why the service did not start is not in its log: %v\n%s", err, b)
	}
}
