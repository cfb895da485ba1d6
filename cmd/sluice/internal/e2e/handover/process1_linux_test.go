package handover

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// contained is a container whose configuration can be changed.
type contained struct {
	*line
	*testbed.Process
	config string
	served int // processes that have served so far
}

// startContained starts one, and waits until it serves.
func (n *line) startContained(config string, args ...string) *contained {
	n.T.Helper()
	c := &contained{line: n, config: filepath.Join(filepath.Dir(n.socket), "config.conf")}
	c.served = strings.Count(n.logged(), "\tserving\t")
	c.write(config)
	c.Process = n.container(os.Args[0], append([]string{"--config", "/run/sluice/config.conf"}, args...)...)
	c.another("the start")
	return c
}

// write changes the configuration.
func (c *contained) write(text string) {
	c.T.Helper()
	text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nudpIdleTimeout: 10s\n" + text
	testbed.Check(c.T, os.WriteFile(c.config, []byte(text), 0o600))
}

// another waits until one process more has served, which is alone with process 1.
func (c *contained) another(after string) {
	c.T.Helper()
	c.served++
	c.Eventually(fmt.Sprintf("process %d serves, after %s", c.served, after), func() bool {
		return strings.Count(c.logged(), "\tserving\t") == c.served
	})
	c.Eventually("there are two processes after "+after, func() bool { return len(c.inside()) == 2 })
}

// inside returns the processes in the container, by their numbers in there.
func (c *contained) inside() map[string]int {
	c.T.Helper()
	pids := make(map[string]int)
	all, err := filepath.Glob("/proc/[0-9]*/status")
	testbed.Check(c.T, err)
	for _, path := range all {
		text, _ := os.ReadFile(path) // it may have ended
		_, after, _ := strings.Cut(string(text), "\nNSpid:")
		line, _, _ := strings.Cut(after, "\n")
		var pid int
		if numbers := strings.Fields(line); len(numbers) == 2 {
			_, err := fmt.Sscan(numbers[0], &pid)
			testbed.Check(c.T, err)
			if parent := c.root(pid); parent == c.Process.Pid() {
				pids[numbers[1]] = pid
			}
		}
	}
	return pids
}

// root returns the process outside that process 1 of a process's container is a child of.
func (c *contained) root(pid int) int {
	for pid > 1 {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			return 0
		}
		_, after, _ := strings.Cut(string(text), "\nNSpid:")
		line, _, _ := strings.Cut(after, "\n")
		if len(strings.Fields(line)) == 1 {
			return pid
		}
		_, after, _ = strings.Cut(string(text), "\nPPid:")
		if _, err := fmt.Sscan(after, &pid); err != nil {
			return 0
		}
	}
	return 0
}

// kill sends a signal to a process in the container, by its number in there.
func (c *contained) kill(number string, sig syscall.Signal) {
	c.T.Helper()
	testbed.Check(c.T, syscall.Kill(c.inside()[number], sig))
}

// server returns the number of the process that serves.
func (c *contained) server() (number string) {
	c.T.Helper()
	// Beside it and process 1 there may be programs that it runs, and those end.
	c.Eventually("there are two processes", func() bool {
		all := c.inside()
		delete(all, "1")
		for n := range all {
			number = n
		}
		return len(all) == 1
	})
	return number
}

// ends waits for the end of the container, and returns its exit code.
func (c *contained) ends() int {
	c.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testbed.Patience)
	defer cancel()
	return testbed.ExitCode(c.Process.Wait(ctx))
}

// errorsSince returns the lines of the log that report errors, from an offset on.
func (n *line) errorsSince(lead int) (lines []string) {
	for line := range strings.Lines(n.logged()[lead:]) {
		if strings.Contains(line, "\tERROR\t") || strings.Contains(line, "\tWARN\t") || strings.HasPrefix(line, "sluice: ") {
			lines = append(lines, line)
		}
	}
	return lines
}

// TestProcess1HandsOver: in a container every way to hand over replaces the process that serves,
// under load, and process 1 stays; a configuration that does not start changes nothing, and is
// reported in one line.
func TestProcess1HandsOver(t *testing.T) {
	testbed.Race(t)
	n := newLine(t, testbed.Config{})
	l := newLoad(n.Lab)
	sig := n.newAssoc()
	c := n.startContained("mode: userspace\n", "--drain-timeout=1s")
	sig.renew()
	defer sig.close()
	const flows = 10
	l.begin(100, flows)
	const broken = "mode: userspace\nbindAddressHardFail: true\nhealthzBindAddress: 203.0.113.1:10256\n"
	for _, step := range []struct {
		what string
		do   func()
		fail string // what the one line of the error holds; empty: another process serves
	}{
		{what: "a changed configuration", do: func() { c.write("mode: userspace\niptables:\n  syncPeriod: 31s\n") }},
		{what: "a hang-up of process 1", do: func() { c.kill("1", syscall.SIGHUP) }},
		{what: "a configuration with a mistake", fail: "the last good one stays", do: func() { c.write("mode: bridge\n") }},
		{what: "a configuration that does not start", fail: "203.0.113.1:10256", do: func() { c.write(broken) }},
		{what: "SIGUSR2 to process 1", do: func() {
			c.write("mode: userspace\niptables:\n  syncPeriod: 32s\n")
			c.another("the mistake is gone")
			c.kill("1", syscall.SIGUSR2)
		}},
		{what: "sluice upgrade", do: func() {
			if out, err := n.upgrade(); err != nil {
				t.Errorf("sluice upgrade: %v, %s", err, out)
			}
		}},
	} {
		lead, server := len(n.logged()), c.server()
		step.do()
		if step.fail == "" {
			c.another(step.what)
		} else {
			n.Eventually(step.what+" is reported", func() bool { return len(n.errorsSince(lead)) > 0 })
			wait(200 * time.Millisecond) // nothing reports that no second line comes
			if lines := n.errorsSince(lead); len(lines) != 1 || !strings.Contains(lines[0], step.fail) {
				t.Errorf("after %s the log has %q, want one line with %q", step.what, lines, step.fail)
			}
			if now := c.server(); now != server || strings.Contains(n.logged()[lead:], "stopping") {
				t.Errorf("after %s process %s serves, want %s:\n%s", step.what, now, server, n.logged()[lead:])
			}
		}
		sig.works()
	}
	lead := len(n.logged())
	c.write("mode: userspace\niptables:\n  syncPeriod: 33s\n")
	n.Eventually("a hand-over is under way", func() bool { return strings.Contains(n.logged()[lead:], "starting a successor") })
	c.write("mode: userspace\niptables:\n  syncPeriod: 34s\n")
	n.Eventually("the last configuration is in effect", func() bool {
		_, page := n.Get("http://127.0.0.1:10249/configz")
		return strings.Contains(page, `"syncPeriod":"34s"`)
	})
	n.Eventually("there are two processes", func() bool { return len(c.inside()) == 2 })
	l.endWell(flows)
	c.kill("1", syscall.SIGTERM)
	if code := c.ends(); code != 0 {
		t.Errorf("exit code %d after SIGTERM, want 0", code)
	}
}

// TestProcess1Fails: whatever keeps a container's program from handing over, the process that serves
// stays.
func TestProcess1Fails(t *testing.T) {
	t.Parallel()
	n := newLine(t, testbed.Config{Pods: 1})
	n.ServeEcho()
	c := n.startContained("mode: userspace\n")
	held := n.Hold()
	held.Works()
	program := fmt.Sprintf("/proc/%d/root/sluice", c.inside()["1"])
	refused := func(what, want string) {
		t.Helper()
		server := c.server()
		out, err := n.upgrade()
		if testbed.ExitCode(err) != 1 || !strings.Contains(out, want) {
			t.Errorf("%s: sluice upgrade = %v, %s; want %q", what, err, out, want)
		}
		if now := c.server(); now != server {
			t.Errorf("%s: process %s serves, want %s", what, now, server)
		}
		held.Works()
		n.Hold().Works()
	}
	testbed.Check(t, os.Rename(program, program+".aside"))
	refused("no program", "no such file")
	testbed.Check(t, os.WriteFile(program, []byte("no program"), 0o755))
	refused("another format", syscall.ENOEXEC.Error())
	testbed.Check(t, os.Rename(program+".aside", program))

	// A successor that is killed before it has anything.
	server := c.server()
	c.kill("1", syscall.SIGHUP)
	var successor int
	n.Eventually("there is a successor", func() bool {
		all := c.inside()
		if all[server] == 0 { // it has taken over before it was seen: the next one
			server = c.server()
			c.kill("1", syscall.SIGHUP)
			return false
		}
		for number, pid := range all {
			if number != "1" && number != server && childOf(all[server]) == pid {
				successor = pid
			}
		}
		return successor != 0
	})
	lead := len(n.logged())
	testbed.Check(t, syscall.Kill(successor, syscall.SIGKILL))
	n.Eventually("its end is reported", func() bool { return len(n.errorsSince(lead)) > 0 })
	held.Works()
	// What the successor has run ends by itself, and is reaped by process 1.
	n.Eventually("there are two processes again", func() bool { return len(c.inside()) == 2 })
	if _, err := n.upgrade(); err != nil {
		t.Errorf("nothing in the way: %v", err)
	}
	c.another("all that")
	held.Works()

	// The container ends with the process that serves, as the kubelet expects.
	c.kill(c.server(), syscall.SIGKILL)
	if code := c.ends(); code != 128+int(syscall.SIGKILL) {
		t.Errorf("exit code %d after a crash, want 137", code)
	}
}

// TestProcess1Stops: SIGTERM ends the container, whichever process serves by then: the one before
// gives up a successor that has not taken over, or that is stopped itself.
func TestProcess1Stops(t *testing.T) {
	t.Parallel()
	n := newLine(t, testbed.Config{Pods: 1})
	n.ServeEcho()
	for i, at := range []string{"", "there is a running process", "steering by ", "handed over; this process ends", "took over"} {
		c := n.startContained(fmt.Sprintf("mode: userspace\nportRange: 31%d00-31%d09\n", i, i))
		lead, server := len(n.logged()), c.server()
		c.kill("1", syscall.SIGHUP)
		if at == "" { // the successor comes to nothing
			n.Eventually("there is a successor", func() bool {
				pid := childOf(c.inside()[server])
				return pid != 0 && syscall.Kill(pid, syscall.SIGSTOP) == nil
			})
		}
		n.Eventually("the log has "+at, func() bool { return strings.Contains(n.logged()[lead:], at) })
		c.kill("1", syscall.SIGTERM)
		began := time.Now()
		if code := c.ends(); code != 0 {
			t.Errorf("at %q: exit code %d, want 0", at, code)
		}
		served := strings.Count(n.logged(), "\tserving\t") - c.served
		t.Logf("stopped at %q: ended within %v, %d successors served", at, time.Since(began).Round(time.Millisecond), served)
		if handed := i > 2; handed != (served == 1) {
			t.Errorf("stopped at %q: %d successors have served", at, served)
		}
	}
	if lines := n.errorsSince(0); len(slices.DeleteFunc(lines, func(line string) bool { return !strings.Contains(line, "serves on") })) > 0 {
		t.Errorf("a process that stops says that it serves on: %q", lines)
	}
}
