package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// TestUnresolvableMaster: an API server whose name nobody knows is named in the log,
// once and with what to do, though every kind of object is asked for again and again, and by sluice status;
// the node is not ready and yet not restarted; and the program ends when it is told.
func TestUnresolvableMaster(t *testing.T) {
	t.Parallel()
	l := lab.New(t, testbed.Config{Pods: 1})
	servers, err := os.ReadFile("/etc/resolv.conf")
	testbed.Check(t, err)
	for line := range strings.Lines(string(servers)) {
		// A name server that refuses at once, where that of this machine would be silent.
		if f := strings.Fields(line); len(f) == 2 && f[0] == "nameserver" && !strings.HasPrefix(f[1], "127.") {
			l.Output("ip", "address", "add", f[1], "dev", "lo")
		}
	}
	socket := filepath.Join(t.TempDir(), "run", "api.sock")
	cmd := l.Command("--master", "no-such-host.invalid", "--hostname-override", "node", "--api-socket", socket)
	l.Launch(cmd)
	said := func() int {
		return strings.Count(l.Log.String(), `the name "no-such-host.invalid" of the API server cannot be resolved`)
	}
	l.Eventually("the log says what is wrong", func() bool { return said() > 0 })
	l.Eventually("the API server is asked again", func() bool {
		_, page := l.Get("http://127.0.0.1:10249/metrics")
		for line := range strings.Lines(page) {
			if rest, ok := strings.CutPrefix(line, `rest_client_requests_total{code="<error>",`); ok && !strings.HasSuffix(rest, " 1\n") {
				return true
			}
		}
		return false
	})
	l.Eventually("the API is served", func() bool { _, err := os.Stat(socket); return err == nil })
	out, err := l.Command("status", "--api-socket", socket).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "serves nothing yet: it has waited for ") ||
		!strings.Contains(string(out), "cannot be resolved") {
		t.Errorf("sluice status of a process that waits: %v, %s", err, out)
	}
	for path, want := range map[string]int{"/healthz": http.StatusServiceUnavailable, "/livez": http.StatusOK} {
		if code, body := l.Get("http://127.0.0.1:10256" + path); code != want {
			t.Errorf("%s = %d, want %d: %s", path, code, want, body)
		}
	}
	if n := said(); n != 1 {
		t.Errorf("said %d times, want once in ten minutes", n)
	}
	l.Signal(syscall.SIGTERM)
	if code := l.Wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
