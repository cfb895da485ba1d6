package handover

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// terminal returns both ends of a new one.
func terminal(t *testing.T) (person, program *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	testbed.Check(t, err)
	t.Cleanup(func() { _ = person.Close() })
	testbed.Check(t, unix.IoctlSetPointerInt(int(person.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(person.Fd()), unix.TIOCGPTN)
	testbed.Check(t, err)
	program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	testbed.Check(t, err)
	t.Cleanup(func() { _ = program.Close() })
	return person, program
}

// TestAsk: a person who starts a second process at the hand-over socket is asked before it removes Services of the
// running one, which goes on if the answer is not yes. With the same Services, or --yes, nothing is asked.
func TestAsk(t *testing.T) {
	t.Parallel()
	l := lab.New(t, testbed.Config{Pods: 1})
	l.ServeEcho()
	l.Write("other.yaml", testbed.ServiceManifest("other", "10.96.0.66:80", "TCP", ""))
	socket := filepath.Join(t.TempDir(), "run", "handover.sock")
	l.Start("--handover-socket", socket)
	held := l.Hold()
	held.Works()
	web := t.TempDir()
	for _, name := range []string{"web.yaml", "other.yaml"} {
		text, err := os.ReadFile(filepath.Join(l.Dir, name))
		testbed.Check(t, err)
		testbed.Check(t, os.WriteFile(filepath.Join(web, name), text, 0o600))
	}
	// start starts a process at a terminal, and answers until it asks or serves.
	start := func(answer string, args ...string) (asked bool, p *testbed.Process) {
		t.Helper()
		person, program := terminal(t)
		cmd := l.Command(append(args, "--handover-socket", socket)...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = program, program, program
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
		p, err := cmd.Launch()
		testbed.Check(t, err)
		t.Cleanup(func() { p.Stop(syscall.SIGKILL) })
		testbed.Check(t, program.Close()) // so that the lines end with the process
		defer time.AfterFunc(testbed.Patience, func() { p.Signal(syscall.SIGQUIT) }).Stop()
		lines, all := bufio.NewScanner(person), ""
		for lines.Scan() {
			all += lines.Text() + "\n"
			switch text := lines.Text(); {
			case strings.Contains(text, "removes the Services that it does not have: default/other."):
				asked = true
				_, err := person.WriteString(answer + "\n")
				testbed.Check(t, err)
			case strings.Contains(text, "goes on: give its manifests"), strings.Contains(text, "\tserving\t"):
				return asked, p
			}
		}
		t.Fatalf("it does not start: %v\n%s", lines.Err(), all)
		return false, nil
	}
	if asked, p := start("n", "--manifests", filepath.Join(web, "web.yaml")); !asked || p.Wait(t.Context()) == nil {
		t.Errorf("asked %v, and it ends without an error", asked)
	}
	held.Works()
	if asked, _ := start("n", "--manifests", web); asked {
		t.Error("it asks though no Service goes")
	}
	if asked, _ := start("n", "--manifests", filepath.Join(web, "web.yaml"), "--yes"); asked {
		t.Error("it asks in spite of --yes")
	}
	held.Works()
}
