package handover

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/api"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// TestRefusedUpgrades: whatever keeps a successor from taking over, the running process
// serves on, and sluice upgrade says why.
func TestRefusedUpgrades(t *testing.T) {
	t.Parallel()
	n := newLine(t, testbed.Config{})
	n.ServeEcho()
	n.Write("broken.yaml", testbed.ServiceManifest("other", "10.96.0.84:80", "TCP", ""))
	n.start()
	c := n.Hold()
	pid := n.pid()
	refused := func(what string, want ...string) {
		t.Helper()
		out, err := n.upgrade()
		if code := testbed.ExitCode(err); code != 1 {
			t.Errorf("%s: sluice upgrade = %v, %s; want exit code 1", what, err, out)
		}
		for _, w := range want {
			if !strings.Contains(out, w) {
				t.Errorf("%s: sluice upgrade says %q, want %q in it", what, out, w)
			}
		}
		if n.pid() != pid || !testbed.Alive(pid) {
			t.Fatalf("%s: process %d is to serve on: the PID file has %d", what, pid, n.pid())
		}
		c.Works()
		n.Hold().Works()
	}

	testbed.Check(t, os.WriteFile(filepath.Join(n.Dir, "broken.yaml"), []byte("kind: Service\n"), 0o644))
	refused("a manifest that has become invalid", "broken.yaml")
	testbed.Check(t, os.Remove(filepath.Join(n.Dir, "broken.yaml")))

	refusedPID := filepath.Dir(n.pidFile)
	aside := refusedPID + ".aside"
	if err := os.Rename(refusedPID, aside); err != nil { // as if the disk were full
		t.Fatal(err)
	}
	n.socket = filepath.Join(aside, filepath.Base(n.socket))
	n.pidFile = filepath.Join(aside, filepath.Base(n.pidFile))
	refused("no place for the PID file", "--pid-file")
	n.socket, n.pidFile = filepath.Join(refusedPID, filepath.Base(n.socket)), filepath.Join(refusedPID, filepath.Base(n.pidFile))
	testbed.Check(t, os.Rename(aside, refusedPID))
	if got := n.Metric("sluice_handover_failures_total"); got != 2 {
		t.Errorf("%v failures counted, want 2", got)
	}
	events, err := api.All[api.Event](t.Context(), api.NewClient(filepath.Join(filepath.Dir(n.socket), "api.sock")),
		"events", url.Values{})
	testbed.Check(t, err)
	var why []string
	for _, e := range events {
		if e.Reason == "HandOverFailed" && e.Warning {
			why = append(why, e.Note)
		}
	}
	if len(why) != 2 || !strings.Contains(why[0], "broken.yaml") {
		t.Errorf("sluice events has the failed hand-overs %q", why)
	}
	var status api.Status
	client := api.NewClient(filepath.Join(filepath.Dir(n.socket), "api.sock"))
	testbed.Check(t, client.Get(t.Context(), "status", nil, &status))
	if status.HandOvers.Failed != 2 {
		t.Errorf("sluice status has %d failed hand-overs, want 2", status.HandOvers.Failed)
	}
	failed := n.Metric(`sluice_handover_last_timestamp_seconds{result="failed"}`)
	n.mustUpgrade()
	c.Works()
	var after api.Status
	testbed.Check(t, client.Get(t.Context(), "status", nil, &after))
	if !after.Serving.Equal(status.Serving) || float64(status.Serving.Unix()) >= failed {
		t.Errorf("serves since %v, was %v before the hand-over; one has failed at %v", after.Serving, status.Serving, failed)
	}
	if last := n.Metric(`sluice_handover_last_timestamp_seconds{result="succeeded"}`); last < failed {
		t.Errorf("the last hand-over was at %v, one has failed at %v", last, failed)
	}
}

// TestUpgradeWithoutDescriptors: a process that holds nearly all it may cannot be taken
// over from, and goes on; with fewer it can.
func TestUpgradeWithoutDescriptors(t *testing.T) {
	t.Parallel()
	n := newLine(t, testbed.Config{Pods: 1})
	n.ServeEcho()
	n.Limit = 64
	n.start("--loops", "1")
	var all []*testbed.Talker
	for range 16 {
		c := n.Hold()
		c.Echoes()
		all = append(all, c)
	}
	out, err := n.upgrade()
	if testbed.ExitCode(err) != 1 || !strings.Contains(out, "(ulimit -n)") {
		t.Errorf("without descriptors: sluice upgrade = %v, %s", err, out)
	}
	for _, c := range all {
		c.Echoes()
	}
	for _, c := range all[4:] {
		_ = c.Close()
	}
	n.Eventually("they have ended", func() bool { return n.Metric(`sluice_active_connections{protocol="TCP"}`) == 4 })
	n.mustUpgrade()
	for _, c := range all[:4] {
		c.Echoes()
	}
}

// TestKilledSuccessors: a successor is killed at any moment; either it never had anything,
// or it has it all.
func TestKilledSuccessors(t *testing.T) {
	testbed.Race(t)
	testbed.Timed(t)
	t.Parallel()
	rounds := 12
	if testing.Short() {
		rounds = 4
	}
	n := newLine(t, testbed.Config{})
	n.ServeEcho()
	n.start()
	c := n.Hold()
	failed := 0
	for i := range rounds {
		pid := n.pid()
		done := make(chan error, 1)
		go func() {
			_, err := n.upgrade()
			done <- err
		}()
		var child int
		n.Eventually("there is a successor", func() bool { child = childOf(pid); return child != 0 || !testbed.Alive(pid) })
		time.Sleep(time.Duration(i*25) * time.Millisecond) // so that all of its life is hit in the end
		killed := false
		if child != 0 && testbed.Alive(pid) && n.pid() == pid {
			killed = syscall.Kill(child, syscall.SIGKILL) == nil
		}
		if killed && testbed.Alive(pid) {
			failed++
		}
		if err := <-done; err == nil && killed {
			// It was killed when it had everything already: that is the end of what it had.
			t.Logf("round %d: killed after the handover", i)
			n.Eventually("the process before has ended", func() bool { return !testbed.Alive(pid) })
			n.Process = nil
			n.start()
			c = n.Hold()
			continue
		}
		c.Works()
		n.Hold().Works()
	}
	t.Logf("%d of %d successors were killed", failed, rounds)
	n.mustUpgrade()
	c.Works()
}

// childOf returns a child of a process that runs the program, 0 if it has none.
func childOf(pid int) int {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return 0
	}
	own, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return 0
	}
	for _, task := range tasks {
		b, _ := os.ReadFile(task)
		for _, f := range strings.Fields(string(b)) {
			var child int
			if _, err := fmt.Sscan(f, &child); err != nil {
				continue
			}
			if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", child)); err == nil && exe == own {
				return child
			}
		}
	}
	return 0
}

// TestUpgradeGoesOn: turns and affinity go on exactly where they were.
func TestUpgradeGoesOn(t *testing.T) {
	testbed.Race(t)
	t.Parallel()
	n := newLine(t, testbed.Config{Clients: 2})
	n.ServeWeb()
	n.Write("sticky.yaml", testbed.ServiceManifest("sticky", "10.96.0.81:80", "TCP", "  sessionAffinity: ClientIP\n"),
		testbed.SliceManifest("sticky", 1, 8080, "TCP", testbed.Addrs(n.Pods...)...))
	n.start()
	ask := func(from *testbed.Host, addr string) string {
		t.Helper()
		name, err := from.Who(addr)
		testbed.Check(t, err)
		return name
	}
	stuck := map[*testbed.Host]string{}
	for _, from := range n.Clients {
		stuck[from] = ask(from, "10.96.0.81:80")
	}
	var order []string
	for range 12 {
		order = append(order, ask(n.Client, lab.WebAddr))
		if len(order) > 3 && order[len(order)-1] != order[len(order)-4] {
			t.Fatalf("turns %v do not go round", order)
		}
		for _, from := range n.Clients {
			if got := ask(from, "10.96.0.81:80"); got != stuck[from] {
				t.Errorf("%s was sent to %s, was at %s", from, got, stuck[from])
			}
		}
		if len(order)%4 == 0 { // at another place of the round each time
			n.mustUpgrade()
		}
	}
}

// TestCrash: the next start listens where the rules that are left lead to, and on node ports, and knows
// its Services by then, so that a client is served as soon as anybody listens. A UDP client
// whose flow conntrack still sends to the old port is, too.
func TestCrash(t *testing.T) {
	l := lab.New(t, testbed.Config{})
	l.ServeWeb()
	l.ServeDNS()
	l.Write("node.yaml", testbed.ServiceManifest("node", "10.96.0.77:80", "TCP", "    nodePort: 30080\n  type: NodePort\n"),
		testbed.SliceManifest("node", 1, 8080, "TCP", testbed.Addrs(l.Pods...)...))
	l.Start()
	steered := l.Traces()
	old := testbed.NewUDPClient(t, l.Client, lab.DNSAddr)
	if _, err := old.Insist(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		l.Signal(syscall.SIGKILL)
		l.Wait()
		if c, err := l.Client.Dial(t.Context(), "tcp", lab.WebAddr); err == nil {
			t.Fatalf("connected to %s with nobody there", c.RemoteAddr())
		}
		var all sync.WaitGroup
		began := time.Now()
		for _, addr := range []string{lab.WebAddr, l.Node.Addr4.String() + ":30080"} {
			all.Go(func() {
				for time.Since(began) < testbed.Patience {
					c, err := l.Client.Dial(context.Background(), "tcp", addr)
					if err != nil {
						continue // refused: no process listens yet
					}
					_ = c.SetDeadline(time.Now().Add(testbed.Patience))
					if name, err := io.ReadAll(c); err != nil || !strings.HasPrefix(string(name), "pod-") {
						t.Errorf("the first client of %s gets %q, %v", addr, name, err)
					}
					_ = c.Close()
					t.Logf("the first client of %s was served %v after the start", addr, time.Since(began).Round(time.Millisecond))
					return
				}
				t.Errorf("no client of %s was served", addr)
			})
		}
		for what, c := range map[string]testbed.UDPClient{"new": testbed.NewUDPClient(t, l.Client, lab.DNSAddr), "old": old} {
			all.Go(func() {
				took, err := recovers(c)
				if err != nil {
					t.Errorf("the %s UDP flow: %v", what, err)
				}
				t.Logf("the %s UDP flow was answered %v after the start", what, took.Round(time.Millisecond))
			})
		}
		l.Start()
		all.Wait()
		if now := l.Traces(); now != steered {
			t.Errorf("the rules have changed:\n%s\nbefore:\n%s", now, steered)
		}
	}
}

// recovers asks until there is an answer, and returns how long that took.
func recovers(c testbed.UDPClient) (time.Duration, error) {
	for began := time.Now(); ; {
		name, _ := c.Ask([]byte("?"), 20*time.Millisecond) // refused: no process listens yet
		if took := time.Since(began); name != "" {
			return took, nil
		} else if took > testbed.Patience {
			return took, fmt.Errorf("no answer within %v", testbed.Patience)
		}
	}
}

// TestCrashWithPortTaken: somebody else has the UDP proxy port of before when the next
// process starts. That takes another, and conntrack does not keep clients on the old.
func TestCrashWithPortTaken(t *testing.T) {
	t.Parallel()
	l := lab.New(t, testbed.Config{})
	l.ServeDNS()
	l.Start()
	c := testbed.NewUDPClient(t, l.Client, lab.DNSAddr)
	if _, err := c.Insist(); err != nil {
		t.Fatal(err)
	}
	steered := func() string {
		m := regexp.MustCompile(`udp \. 53 : (\d+)`).FindStringSubmatch(l.Steered())
		if m == nil {
			t.Fatalf("no port is steered to:\n%s", l.Steered())
		}
		return m[1]
	}
	before := steered()
	l.Signal(syscall.SIGKILL)
	l.Wait()
	thief, err := l.Node.ListenPacket(t.Context(), "udp", ":"+before)
	testbed.Check(t, err)
	defer thief.Close()
	l.Start()
	if _, err := recovers(c); err != nil {
		t.Error(err)
	}
	if after := steered(); after == before {
		t.Errorf("the port %s, which another program has now, is steered to", after)
	}
}

// onDisk has the program see a file system of its own at a new directory, which it returns.
func (n *line) onDisk(options string) (dir string) {
	n.T.Helper()
	dir = n.T.TempDir()
	shell, err := exec.LookPath("sh")
	if err != nil {
		n.T.Fatal(err)
	}
	n.Wrap = []string{"unshare", "--mount", shell, "-c", fmt.Sprintf("mount -t tmpfs -o %s none %s && exec \"$@\"", options, dir), "sh"}
	return dir
}

// TestNoPlaceForSocket: where the handover socket cannot be made the program serves all the
// same, and says which place it is and what is to be done.
func TestNoPlaceForSocket(t *testing.T) {
	for _, c := range []struct{ what, options, want string }{
		{"read-only", "ro,mode=700", "is on a read-only file system: give --handover-socket"},
		{"full", "nr_inodes=1,mode=700", "make room on the file system of directory"},
	} {
		t.Run(c.what, func(t *testing.T) {
			n := newLine(t, testbed.Config{Pods: 1})
			n.ServeEcho()
			dir := n.onDisk(c.options)
			n.Lab.Start("--pid-file", n.pidFile, "--handover-socket", filepath.Join(dir, "handover.sock"))
			n.saysOfPlace(dir, c.want)
			n.Hold().Works()
		})
	}
	t.Run("read-only when upgraded", func(t *testing.T) {
		n := newLine(t, testbed.Config{Pods: 1})
		n.ServeEcho()
		dir := n.onDisk("mode=700")
		n.Lab.Start("--pid-file", n.pidFile, "--handover-socket", filepath.Join(dir, "handover.sock"))
		n.Eventually("the PID file is written", func() bool { return n.pid() != 0 })
		pid := n.pid()
		if out, err := n.Node.Command(t.Context(), "nsenter", "--target", strconv.Itoa(pid), "--mount", "mount", "-o", "remount,ro", dir).CombinedOutput(); err != nil {
			t.Fatalf("remount: %v, %s", err, out)
		}
		c := n.Hold()
		c.Works()
		_ = syscall.Kill(pid, syscall.SIGHUP)
		n.Eventually("the next process serves", func() bool { return n.pid() != pid && !testbed.Alive(pid) })
		n.saysOfPlace(dir, "is on a read-only file system: give --handover-socket")
		c.Works()
		n.Hold().Works()
	})
}

// saysOfPlace wants an error in the log that names a directory and what is wrong with it.
func (n *line) saysOfPlace(dir, want string) {
	n.T.Helper()
	n.Eventually("the log says "+want, func() bool {
		for line := range strings.Lines(n.logged()) {
			if strings.Contains(line, "ERROR") && strings.Contains(line, dir) && strings.Contains(line, want) {
				return true
			}
		}
		return false
	})
}

// TestUpgradeWithFullDisk: a successor that cannot write its PID file does not take over.
func TestUpgradeWithFullDisk(t *testing.T) {
	t.Parallel()
	n := newLine(t, testbed.Config{Pods: 1})
	n.ServeEcho()
	// The processes see a disk of two pages at the place of the PID file: for two files.
	disk := n.onDisk("size=8k,mode=0755")
	pidFile := n.pidFile
	n.pidFile = disk + "/pid"
	n.Lab.Start("--pid-file", n.pidFile, "--handover-socket", n.socket)
	n.Wrap = nil
	pid := n.Process.Pid()
	other := fmt.Sprintf("/proc/%d/root%s/other", pid, disk)
	n.Eventually("the program can be upgraded", func() bool {
		_, err := os.Stat(n.socket)
		return err == nil
	})
	n.pidFile = pidFile
	c := n.Hold()
	c.Works()
	testbed.Check(t, os.WriteFile(other, []byte("full"), 0o600))
	out, err := n.upgrade()
	if testbed.ExitCode(err) != 1 || !strings.Contains(out, syscall.ENOSPC.Error()) {
		t.Errorf("with a full disk: sluice upgrade = %v, %s", err, out)
	}
	c.Works()
	n.Hold().Works()
	testbed.Check(t, os.Remove(other))
	if out, err := n.upgrade(); err != nil {
		t.Errorf("with room again: %v, %s", err, out)
	}
	c.Works()
	for _, pid := range n.Processes() {
		_ = syscall.Kill(pid, syscall.SIGKILL) // its PID file cannot be seen from here
	}
}
