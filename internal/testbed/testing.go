package testbed

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Environment variables that, set to 1 as in CI, make a test fail that would otherwise
// skip because the machine lacks something.
const (
	RequireVar     = "SLUICE_REQUIRE_NETNS" // network namespaces and the programs of the tests
	RequireIPVSVar = "SLUICE_REQUIRE_IPVS"
)

// UpdateVar has [Golden] write files instead of comparing them, if it is set to 1.
const UpdateVar = "SLUICE_UPDATE"

// Golden wants a text to be what a file of the package has.
func Golden(t testing.TB, file, got string) {
	t.Helper()
	if os.Getenv(UpdateVar) == "1" {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("%s (-file +test); if the change is meant, run this test with %s=1:\n%s", file, UpdateVar, diff)
	}
}

// NewT is [New] for tests: it closes the testbed when the test is over, and calls
// [Missing] where network namespaces are not to be had.
func NewT(t testing.TB, cfg Config) *Testbed {
	t.Helper()
	tb, err := New(cfg)
	if errors.Is(err, ErrUnsupported) {
		Missing(t, err.Error())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tb.Close)
	return tb
}

// NewHostsT builds hosts without links instead of a cluster; [Cable] joins them. They have a
// loopback interface and the settings of an end system: forwarding is off.
func NewHostsT(t testing.TB, names ...string) []*Host {
	t.Helper()
	tb, err := newHosts(names...)
	if errors.Is(err, ErrUnsupported) {
		Missing(t, err.Error())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tb.Close)
	return tb.hosts
}

// HereT returns the host that the process of the test is: the namespace that [Main] has
// given it. Where there is none it calls [Missing].
func HereT(t testing.TB) *Host {
	t.Helper()
	return hostOf(t, "here", ownNamespace)
}

// EnteredT returns the host that the test has entered with [Host.Enter].
func EnteredT(t testing.TB) *Host {
	t.Helper()
	return hostOf(t, "entered", enteredNamespace)
}

func hostOf(t testing.TB, name string, find func() (*namespace, error)) *Host {
	t.Helper()
	ns, err := find()
	if errors.Is(err, ErrUnsupported) {
		Missing(t, err.Error())
	}
	Check(t, err)
	t.Cleanup(ns.close)
	return &Host{Name: name, ns: ns, tb: &Testbed{}}
}

// Missing ends a test that cannot run for the given reason: it skips it, or fails
// it if [RequireVar] is set to 1.
func Missing(t testing.TB, reason string) {
	t.Helper()
	MissingUnless(t, RequireVar, reason)
}

// MissingUnless is [Missing] with another variable.
func MissingUnless(t testing.TB, variable, reason string) {
	t.Helper()
	if os.Getenv(variable) == "1" {
		t.Fatalf("cannot test: %s", reason)
	}
	t.Skipf("NOT TESTED: %s (%s=1 makes this a failure)", reason, variable)
}

// Enter moves the test into the host until it ends: the calling goroutine, and the
// processes that it starts. See [Host.Do] for what stays outside.
func (h *Host) Enter(t testing.TB) {
	t.Helper()
	leave, err := h.enter()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := leave(); err != nil {
			t.Error(err)
		}
	})
}

// DoT is [Host.Do] for tests.
func (h *Host) DoT(t testing.TB, f func() error) {
	t.Helper()
	if err := h.Do(f); err != nil {
		t.Fatal(err)
	}
}

// Run runs a command on the host to its end and returns what it prints, to standard
// output and error; the test fails if the command does.
func (h *Host) Run(t testing.TB, name string, args ...string) string {
	t.Helper()
	return run(t, h.Command(t.Context(), name, args...), name, args)
}

// Run is [Host.Run] on the host that the test has entered.
func Run(t testing.TB, name string, args ...string) string {
	t.Helper()
	return run(t, exec.CommandContext(t.Context(), name, args...), name, args)
}

// Feed is [Run] with input.
func Feed(t testing.TB, input, name string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Stdin = strings.NewReader(input)
	run(t, cmd, name, args)
}

func run(t testing.TB, cmd interface{ CombinedOutput() ([]byte, error) }, name string, args []string) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// SysctlT is [Host.Sysctl] until the test ends.
func (h *Host) SysctlT(t testing.TB, key, value string) {
	t.Helper()
	var before []byte
	h.DoT(t, func() (err error) { before, err = os.ReadFile(sysctlFile(key)); return err })
	Check(t, h.Sysctl(key, value))
	t.Cleanup(func() { _ = h.Sysctl(key, string(before)) }) // fails if the interface is gone
}

// WriteScript writes a script of the shell, without the line that names the shell. No program is
// started meanwhile: it would hold the file open for a moment, and a file that may be written
// cannot be run (ETXTBSY, execve(2)).
func WriteScript(t testing.TB, path, text string) {
	t.Helper()
	syscall.ForkLock.RLock()
	err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o755)
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
}

// Check ends the test if there is an error.
func Check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Report has the test fail if there is an error, and goes on.
func Report(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// Scripts has run return each script of testdata/*.txt with what its steps give, which must be as it stands there.
func Scripts(t *testing.T, run func(t *testing.T, script string) string) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			script, err := os.ReadFile(file)
			Check(t, err)
			Golden(t, file, run(t, string(script)))
		})
	}
}

// RunEach runs tests as parts of t, by their names without "Test".
func RunEach(t *testing.T, tests ...func(*testing.T)) {
	for _, test := range tests {
		name := runtime.FuncForPC(reflect.ValueOf(test).Pointer()).Name()
		t.Run(name[strings.LastIndex(name, ".Test")+len(".Test"):], test)
	}
}

// Keep closes a server when the test ends: Keep(t)(host.WhoTCP(":80")).
func Keep(t testing.TB) func(*Server, error) *Server {
	return func(s *Server, err error) *Server {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
}
