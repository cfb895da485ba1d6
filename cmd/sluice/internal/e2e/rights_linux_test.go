package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// TestWithoutRoot: CAP_NET_ADMIN and CAP_NET_RAW are enough, beside iptables-legacy too, whose tables are root's to
// read.
func TestWithoutRoot(t *testing.T) {
	ids, err := os.ReadFile("/proc/self/uid_map")
	testbed.Check(t, err)
	if fields := strings.Fields(string(ids)); len(fields) != 3 || len(fields[2]) < 6 {
		testbed.Missing(t, "other users than root, which this user namespace does not map")
	}
	l := lab.New(t, testbed.Config{})
	testbed.Check(t, os.Chmod(filepath.Dir(l.Dir), 0o755)) // which only its owner may enter
	l.ServeWeb()
	l.Wrap = []string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs",
		"--inh-caps=-all,+net_admin,+net_raw", "--ambient-caps=-all,+net_admin,+net_raw"}
	l.Start("--handover-socket=")
	if name, err := lab.Who(l.Client, lab.WebAddr); err != nil || name == "" {
		t.Errorf("answer %q, %v", name, err)
	}
	if log := l.Log.String(); strings.Contains(log, "ERROR") {
		t.Errorf("the log has an error:\n%s", log)
	}
}
