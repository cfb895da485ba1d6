package handover

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// systemdScript boots systemd as process 1 of a container with the node's network, and with the
// folder $1 as /run/systemd/system, $2 as /etc/default, $3 as /usr/local/bin and $4 as
// /run/manifests. It has a control group of its own, $5, in the hierarchy of version 2.
const systemdScript = `set -e
echo $$ >"$5/cgroup.procs"
exec unshare --mount --pid --fork --cgroup --ipc --uts sh -c '
set -e
mount --make-rprivate /
mount -t proc proc /proc
umount -R /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/systemd/system /run/manifests
mount --bind "$1" /run/systemd/system
mount --bind "$2" /etc/default
mount --bind "$3" /usr/local/bin
mount --bind "$4" /run/manifests
exec /usr/lib/systemd/systemd --system --unit=sluice-test.target --show-status=no --log-target=console --log-level=info
' sh "$@"`

// systemd is a running one, with the unit of deploy/systemd.
type systemd struct {
	*line
	root     int    // its process, as seen from here
	defaults string // the folder /etc/default
	programs string // the folder /usr/local/bin
}

// startSystemd boots one in which nothing is started but what depends on no other unit.
func (n *line) startSystemd(args string, dropIn string) *systemd {
	n.T.Helper()
	unified := "/sys/fs/cgroup"
	if _, err := os.Stat(unified + "/unified/cgroup.controllers"); err == nil {
		unified += "/unified" // beside version 1
	}
	group, err := os.MkdirTemp(unified, "sluice-test-")
	testbed.Check(n.T, err)
	n.T.Cleanup(func() { n.removeGroup(group) })
	units, s := n.T.TempDir(), &systemd{line: n, defaults: n.T.TempDir(), programs: n.T.TempDir()}
	unit, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "..", "deploy", "systemd", "sluice.service"))
	testbed.Check(n.T, err)
	for name, text := range map[string]string{
		"sluice.service": string(unit), "sluice.service.d/test.conf": dropIn,
		"sluice-test.target": "[Unit]\nDefaultDependencies=no\n", "shutdown.target": "[Unit]\nDefaultDependencies=no\n",
		"sysinit.target": "[Unit]\nDefaultDependencies=no\n", "basic.target": "[Unit]\nDefaultDependencies=no\n",
		"network-online.target": "[Unit]\nDefaultDependencies=no\n",
	} {
		path := filepath.Join(units, name)
		testbed.Check(n.T, os.MkdirAll(filepath.Dir(path), 0o755))
		testbed.Check(n.T, os.WriteFile(path, []byte(text), 0o644))
	}
	s.install()
	testbed.Check(n.T, os.WriteFile(filepath.Join(s.defaults, "sluice"),
		fmt.Appendf(nil, "%s=%s\nSLUICE_ARGS=--manifests /run/manifests %s\n", lab.ProgramVar, n.Dir, args), 0o644))
	cmd := n.Node.Command(context.Background(), "sh", "-c", systemdScript, "sh", units, s.defaults, s.programs, n.Dir, group)
	cmd.Env = append(os.Environ(), "container=sluice-test", "SYSTEMD_UNIT_PATH=/run/systemd/system", "SYSTEMD_COLORS=0")
	cmd.Stdout, cmd.Stderr = &n.Log, &n.Log
	p, err := cmd.Launch()
	testbed.Check(n.T, err)
	c := &contained{line: n, Process: p}
	n.Eventually("systemd runs", func() bool { s.root = c.inside()["1"]; return s.root != 0 })
	n.T.Cleanup(func() {
		_ = syscall.Kill(s.root, syscall.SIGKILL)
		_ = p.Wait(context.Background())
	})
	n.Eventually("systemd answers", func() bool { _, err := s.ctl("show", "--property=Version"); return err == nil })
	return s
}

// removeGroup removes a control group and those below it, which are empty.
func (n *line) removeGroup(group string) {
	n.Eventually("the control group is gone", func() bool {
		var all []string
		_ = filepath.WalkDir(group, func(path string, d os.DirEntry, _ error) error {
			if d != nil && d.IsDir() {
				all = append(all, path)
			}
			return nil
		})
		for i := range all {
			_ = os.Remove(all[len(all)-1-i])
		}
		_, err := os.Stat(group)
		return os.IsNotExist(err)
	})
}

// install replaces the program at its path, as a package manager does.
func (s *systemd) install() {
	s.T.Helper()
	program, err := os.ReadFile(os.Args[0])
	testbed.Check(s.T, err)
	path := filepath.Join(s.programs, "sluice")
	testbed.Check(s.T, os.WriteFile(path+".new", program, 0o755))
	testbed.Check(s.T, os.Rename(path+".new", path))
}

// ctl is systemctl.
func (s *systemd) ctl(args ...string) (string, error) {
	out, err := s.Node.Command(s.T.Context(), "nsenter", append([]string{"--target", strconv.Itoa(s.root), "--mount", "--pid",
		"--cgroup", "systemctl", "--no-pager"}, args...)...).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// must is a ctl that succeeds.
func (s *systemd) must(args ...string) string {
	s.T.Helper()
	out, err := s.ctl(args...)
	if err != nil {
		s.T.Fatalf("systemctl %v: %v, %s", args, err, out)
	}
	return out
}

// get returns a property of the service.
func (s *systemd) get(property string) string {
	s.T.Helper()
	return s.must("show", "sluice.service", "--value", "--property="+property)
}

// TestSystemd: with the unit of deploy/systemd a reload, a new program and a restart lose nothing,
// under load, and systemd knows which process serves. What does not start changes nothing, and
// the reload fails.
func TestSystemd(t *testing.T) {
	n := newLine(t, testbed.Config{})
	l := newLoad(n.Lab)
	log := n.File.Name()
	s := n.startSystemd("--udp-timeout=10s --drain-timeout=1s",
		fmt.Sprintf("[Service]\nWatchdogSec=8\nStandardOutput=append:%s\nStandardError=append:%s\n", log, log))
	n.Write("broken.yaml", testbed.ServiceManifest("other", "10.96.0.84:80", "TCP", ""))
	s.must("start", "sluice.service")
	const flows = 10
	l.begin(100, flows)
	for _, step := range []struct {
		what string
		do   func()
		same bool // the process stays
	}{
		{what: "reload", do: func() { s.must("reload", "sluice.service") }},
		{what: "upgrade", do: func() { s.install(); s.must("reload", "sluice.service") }},
		{what: "restart", do: func() { s.must("restart", "sluice.service") }},
		{what: "restart again", do: func() { s.must("restart", "sluice.service") }},
		{what: "SIGHUP", do: func() { s.must("kill", "--kill-whom=main", "--signal=HUP", "sluice.service") }},
		{what: "failing reload", same: true, do: func() {
			n.Write("broken.yaml", "kind: Service\n")
			if out, err := s.ctl("reload", "sluice.service"); err == nil {
				t.Errorf("a reload with a manifest that has become invalid succeeds: %s", out)
			}
			testbed.Check(t, os.Remove(filepath.Join(n.Dir, "broken.yaml")))
		}},
	} {
		before := s.get("MainPID")
		step.do()
		n.Eventually("the process that serves after "+step.what, func() bool {
			return (s.get("MainPID") == before) == step.same && s.get("ActiveState") == "active"
		})
		is, want := strings.HasPrefix, "serving " // which a successor says after systemd has heard of it
		if step.same {
			is, want = strings.Contains, "not handed over: "
		}
		n.Eventually("the status after "+step.what, func() bool { return is(s.get("StatusText"), want) })
		if out, err := s.ctl("is-active", "sluice-keeper-*.service"); err == nil {
			t.Errorf("after %s the process of the restart is %s", step.what, out)
		}
	}
	fed := func() string { return s.get("WatchdogTimestampMonotonic") }
	last := fed()
	n.Eventually("the watchdog is fed", func() bool { return fed() != last })
	if restarts := s.get("NRestarts"); restarts != "0" {
		t.Errorf("restarted %s times", restarts)
	}
	l.endWell(flows)

	// A process that hangs is ended by the watchdog, and another one serves.
	hung := s.get("MainPID")
	s.must("kill", "--kill-whom=main", "--signal=STOP", "sluice.service")
	n.Eventually("another process serves", func() bool { return s.get("MainPID") != hung && s.get("SubState") == "running" })
	if restarts := s.get("NRestarts"); restarts != "1" {
		t.Errorf("restarted %s times, want once", restarts)
	}

	// A restart with a broken file serves the others.
	n.Write("broken.yaml", "kind: Service\n")
	s.must("restart", "sluice.service")
	if name, err := n.Client.Who(l.addr(0, 80)); err != nil || name == "" {
		t.Errorf("after a restart with a broken file a new connection gives %q, %v", name, err)
	}
	testbed.Check(t, os.Remove(filepath.Join(n.Dir, "broken.yaml")))
	s.must("stop", "sluice.service")
	if got := s.get("Result"); got != "success" || len(n.Processes()) > 0 {
		t.Errorf("the result of a stop is %s, processes %v are left", got, n.Processes())
	}
}
