package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// TestWithoutRoot: in every mode the capabilities that deploy/README.md lists are enough for another user than root, also
// beside iptables-legacy, whose tables only root reads. A hand-over needs no more.
func TestWithoutRoot(t *testing.T) {
	testbed.VM(t)
	t.Parallel()
	ids, err := os.ReadFile("/proc/self/uid_map")
	testbed.Check(t, err)
	if fields := strings.Fields(string(ids)); len(fields) != 3 || len(fields[2]) < 6 {
		testbed.Missing(t, "other users than root, which this user namespace does not map")
	}
	for _, args := range []string{"userspace --packet-filter=nftables", "userspace --packet-filter=iptables", "queue",
		"nftables", "iptables", "ipvs", "winuserspace"} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			args := strings.Fields(args)
			lab.NeedMode(t, args[0])
			testWithoutRoot(t, args[0], args[1:]...)
		})
	}
}

func testWithoutRoot(t *testing.T, mode string, args ...string) {
	const user, capabilities = 65534, "-all,+net_admin,+net_raw,+net_bind_service"
	l := lab.New(t, testbed.Config{})
	if mode == "winuserspace" {
		l = l.WinUserspace()
	}
	testbed.Check(t, os.Chmod(filepath.Dir(l.Dir), 0o755)) // which only its owner may enter
	run := t.TempDir()
	testbed.Check(t, os.Chown(run, user, user))
	l.ServeWeb()
	l.ServeDNS()
	l.Write("low.yaml", fmt.Sprintf("listen: tcp://:81\nendpoints: [%s:8080]\n", l.Pods[0].Addr4))
	l.Wrap = []string{"setpriv", fmt.Sprintf("--reuid=%d", user), fmt.Sprintf("--regid=%d", user), "--clear-groups",
		"--no-new-privs", "--bounding-set=" + capabilities, "--inh-caps=" + capabilities, "--ambient-caps=" + capabilities}
	args = append([]string{"--proxy-mode", mode, "--handover-socket", filepath.Join(run, "handover.sock")}, args...)
	l.Start(args...)
	ask := func(when string) {
		t.Helper()
		for _, addr := range []string{lab.WebAddr, l.Node.Addr4.String() + ":81"} {
			if name, err := l.Client.Who(addr); err != nil || !strings.HasPrefix(name, "pod-") {
				t.Errorf("%s: TCP %s: %q, %v", when, addr, name, err)
			}
		}
		if log := l.Log.String(); strings.Contains(log, "ERROR") || strings.Contains(log, "PortAlreadyClaimed") {
			t.Errorf("%s: the log has an error:\n%s", when, log)
		}
	}
	ask("after the start")
	l.HandOver(args...)
	testbed.Check(t, l.Process.Healthy(t.Context(), testbed.HealthURL))
	ask("after a hand-over")
}
