package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// build compiles a package as a static binary.
func build(t *testing.T, pkg string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "binary")
	cmd := exec.Command("go", "build", "-o", to, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, out)
	}
	return to
}

// TestRun runs a program in machines: what it writes and how it ends comes out, and
// where it cannot say how it ended, the reason does.
func TestRun(t *testing.T) {
	if testing.Short() {
		t.Skip("needs no race detector: it runs other programs")
	}
	for _, p := range []string{"qemu-system-x86_64", "modprobe", "depmod"} {
		if _, err := findProgram(p); err != nil {
			testbed.Missing(t, err.Error())
		}
	}
	vm, guest := build(t, "."), build(t, "./testdata/guest")
	if out, err := exec.Command(vm, "-prepare").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for name, c := range map[string]struct {
		args           []string
		grace          string // of the machine, from when its program begins
		status         int
		stdout, stderr string // contained in it; stdout in whole if the program ended
	}{
		"output":  {[]string{"say"}, "2m", 0, "one\ntwo \x00\xff\r\nSLUICE_TRY=yes\n", ""},
		"status":  {[]string{"exit"}, "2m", 7, "ending with 7\n", ""},
		"orphans": {[]string{"orphans"}, "2m", 0, strings.Repeat("x", 4000), ""},
		"killed":  {[]string{"kill"}, "2m", 128 + 9, "", ""},
		"missing": {[]string{"panic"}, "2m", hostFailed, "", "sysrq triggered crash"},
		"hanging": {[]string{"hang", "-test.timeout=1ms"}, "15s", hostFailed, "hanging\n", "did not end within"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // to start, an interpreted machine among others has taken a minute
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			var stdout, stderr bytes.Buffer
			cmd := exec.CommandContext(ctx, vm, append([]string{"-grace", c.grace, guest}, c.args...)...)
			cmd.Env = append(os.Environ(), "SLUICE_TRY=yes")
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			status := 0
			var exit *exec.ExitError
			if err := cmd.Run(); errors.As(err, &exit) {
				status = exit.ExitCode()
			} else if err != nil {
				t.Fatal(err)
			}
			if status != c.status || stdout.String() != c.stdout || !strings.Contains(stderr.String(), c.stderr) {
				t.Errorf("status %d, want %d; output %q, want %q; errors, wanted with %q:\n%s",
					status, c.status, &stdout, c.stdout, c.stderr, &stderr)
			}
		})
	}
}
