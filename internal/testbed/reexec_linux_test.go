package testbed

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
)

const nobody = 65534

// The program reexec does what a program that calls Reexec sees: it prints its
// namespaces and interfaces, and then exits with the status 7, or, given the
// argument "wait", waits for SIGTERM and exits with 8.
func init() {
	programs["reexec"] = func([]string) int {
		terms := make(chan os.Signal, 1)
		signal.Notify(terms, syscall.SIGTERM)
		if err := Reexec(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 9
		}
		if err := Reexec(); err != nil { // once more changes nothing
			return 10
		}
		for _, ns := range []string{"net", "mnt"} {
			name, _ := os.Readlink("/proc/self/ns/" + ns)
			fmt.Println(ns, name)
		}
		run, err := os.ReadDir("/run")
		fmt.Println("run", len(run), err, os.WriteFile("/run/xtables.lock", nil, 0o600))
		fmt.Println("uid", os.Getuid(), "args", os.Args[1:])
		if slices.Contains(os.Args, "wait") {
			<-terms
			return 8
		}
		return 7
	}
}

// fresh returns a command that runs this test binary as one of its programs, as
// if it were started outside of all this.
func fresh(ctx context.Context, program string, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, "/proc/self/exe", args...)
	c.Env = slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, stageVar+"=") })
	if program != "" {
		c.Env = append(c.Env, programVar+"="+program)
	}
	return c
}

// asNobody makes a command run without privileges, or skips the test if this
// process cannot change users or the kernel gives user nobody no namespaces.
func asNobody(t *testing.T, c *exec.Cmd) *exec.Cmd {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("NOT TESTED: only root can become nobody")
	}
	if m, err := os.ReadFile("/proc/self/uid_map"); err != nil || !strings.Contains(string(m), "4294967295") {
		t.Skipf("NOT TESTED: nobody is not to be had in this user namespace, whose map is %q, %v", m, err)
	}
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	probe := exec.Command("unshare", "-rn", "true")
	probe.SysProcAttr = c.SysProcAttr
	if out, err := probe.CombinedOutput(); err != nil {
		t.Skipf("NOT TESTED: the kernel gives user nobody no namespaces: %v: %s", err, out)
	}
	c.Dir = "/"
	return c
}

func TestReexec(t *testing.T) {
	NewT(t, Config{Pods: -1}) // to skip where it cannot be
	for _, user := range []string{"root", "nobody"} {
		t.Run(user, func(t *testing.T) {
			c := fresh(within(t, soon), "reexec", "some", "args")
			if user == "nobody" {
				c = asNobody(t, c)
			}
			c.Stderr = os.Stderr
			out, err := c.Output()
			if c.ProcessState.ExitCode() != 7 {
				t.Errorf("ended with %v, want status 7", err)
			}
			for _, want := range []string{"run 0 <nil> <nil>\n", "uid 0 args [some args]\n"} {
				if !strings.Contains(string(out), want) {
					t.Errorf("no %q in:\n%s", want, out)
				}
			}
			for _, ns := range []string{"net", "mnt"} {
				own := must[string](t)(os.Readlink("/proc/self/ns/" + ns))
				if !strings.Contains(string(out), ns+" "+ns) || strings.Contains(string(out), own) {
					t.Errorf("outside %s namespace is %s; inside:\n%s", ns, own, out)
				}
			}
		})
	}
}

// TestReexecPassesSignal terminates the first process: the second must see it, and
// its answer must come back.
func TestReexecPassesSignal(t *testing.T) {
	NewT(t, Config{Pods: -1})
	c := fresh(within(t, soon), "reexec", "wait")
	out := must[io.ReadCloser](t)(c.StdoutPipe())
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "uid") {
			break
		}
	}
	c.Process.Signal(syscall.SIGTERM)
	if err := c.Wait(); c.ProcessState.ExitCode() != 8 {
		t.Errorf("ended with %v, want status 8", err)
	}
}

// TestUnprivileged runs tests of this package as nobody, from outside.
func TestUnprivileged(t *testing.T) {
	const tests = "^(TestStandardLab|TestHairpin|TestBlackholeNode|TestCommand|TestSysctl|TestDoNeverFreesStrayThread)$"
	c := asNobody(t, fresh(within(t, 6*soon), "", "-test.run", tests, "-test.v"))
	c.Env = append(c.Env, RequireVar+"=1")
	out, err := c.CombinedOutput()
	if err != nil || strings.Count(string(out), "--- PASS") != 6 {
		t.Errorf("%v:\n%s", err, out)
	}
}

// TestUnsupported takes the right to have namespaces away, and checks that tests
// skip, or fail if they must not.
func TestUnsupported(t *testing.T) {
	NewT(t, Config{Pods: -1})
	self := must[string](t)(os.Executable())
	for _, required := range []string{"0", "1"} {
		// A user namespace may hold none of its own: user.max_net_namespaces is per
		// user namespace, and 0 in a new one if its maker says so (namespaces(7)).
		c := exec.CommandContext(within(t, soon), "unshare", "-r", "sh", "-c",
			"echo 0 >/proc/sys/user/max_net_namespaces && exec $0 -test.run '^TestStandardLab$' -test.v", self)
		c.Env = append(fresh(t.Context(), "").Env, RequireVar+"="+required)
		out, err := c.CombinedOutput()
		skipped := strings.Contains(string(out), "--- SKIP") && strings.Contains(string(out), "NOT TESTED")
		failed := strings.Contains(string(out), "--- FAIL")
		if skipped != (required == "0") || failed != (required == "1") || (err != nil) != failed {
			t.Errorf("with %s=%s: %v\n%s", RequireVar, required, err, out)
		}
	}
}
