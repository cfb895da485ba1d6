package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// TestConfigFile: the program does what the file says, survives a mistake in it,
// and ends when it comes to say something else, so that it is started again.
func TestConfigFile(t *testing.T) {
	t.Parallel()
	l := lab.New(t, testbed.Config{Pods: 1})
	l.ServeWeb()
	file, write := lab.ConfigFile(t)
	write("mode: userspace\noomScoreAdj: 700\nmetricsBindAddress: 127.0.0.1:10299\nudpIdelTimeout: 1s\n")
	l.Start("--config", file, "--udp-timeout=1h", "--drain-timeout=1s")
	if code, _ := l.Get("http://127.0.0.1:10299/metrics"); code != 200 {
		t.Errorf("/metrics at the file's address = %d", code)
	}
	score, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", l.Process.Pid()))
	if err != nil || strings.TrimSpace(string(score)) != "700" {
		t.Errorf("oom_score_adj = %q, %v", score, err)
	}
	for _, want := range []string{`unknown field \"udpIdelTimeout\"`, "these flags are ignored: --udp-timeout"} {
		if n := strings.Count(l.Log.String(), want); n != 1 {
			t.Errorf("the log has %q %d times", want, n)
		}
	}
	write("mode: bridge\n")
	l.Eventually("the mistake is in the log", func() bool { return strings.Contains(l.Log.String(), "the last good one stays") })
	if _, err := l.Client.Who(lab.WebAddr); err != nil {
		t.Errorf("after the mistake: %v", err)
	}
	write("oomScoreAdj: 701\n")
	if code := l.Wait(); code != 1 {
		t.Errorf("exit code %d after the change, want 1", code)
	}
	if log := l.Log.String(); !strings.HasSuffix(strings.TrimSpace(log), "start again for it to take effect") {
		t.Errorf("the last line is not the reason:\n%s", log)
	}
}

// TestFlagsThatExit: what is done and then over, with its exit code.
func TestFlagsThatExit(t *testing.T) {
	t.Parallel()
	l := lab.New(t, testbed.Config{Pods: 1})
	dir := t.TempDir()
	out := filepath.Join(dir, "out.yaml")
	for _, test := range []struct {
		args string
		code int
		want string
	}{
		{"--version", 0, "sluice test"},
		{"--version=raw", 0, "GoVersion"},
		{"--help", 0, "--kubeconfig FILE"},
		{"--write-config-to " + out + " --proxy-mode=ipvs", 0, ""},
		{"--init-only --conntrack-tcp-timeout-close-wait=77s --conntrack-max-per-core=0", 0, ""},
		// A node that is a container itself may not write all of them.
		{"--init-only --conntrack-tcp-timeout-close-wait=77s", 0, "conntrack settings not applied"},
		{"--proxy-mode=bridge", 1, "unknown: give userspace"},
		{"--kubeconfig=" + dir + "/none", 1, "no such file"},
		{"--cluster-cidr=10.0.0.0", 1, "is not an address range"},
		{"--logtostderr=false --log-file=" + dir + "/none/log --manifests " + dir, 1, "--log-file"},
	} {
		text, err := l.Command(strings.Fields(test.args)...).CombinedOutput()
		code := 0
		if err != nil {
			code = testbed.ExitCode(err)
		}
		if code != test.code || !strings.Contains(string(text), test.want) || test.want == "" && strings.Contains(string(text), "WARN") {
			t.Errorf("%s: exit code %d, want %d and %q:\n%s", test.args, code, test.code, test.want, text)
		}
	}
	if text, err := os.ReadFile(out); err != nil || !strings.Contains(string(text), "mode: ipvs") {
		t.Errorf("--write-config-to wrote %q, %v", text, err)
	}
	if got := strings.TrimSpace(l.Output("cat", "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait")); got != "77" {
		t.Errorf("--init-only left the timeout at %s", got)
	}
	l.Wrap = []string{"env", "PATH=/nowhere"} // as in the image that has no other program
	if text, err := l.Command("--init-only", "--conntrack-max-per-core=0").CombinedOutput(); err != nil || strings.Contains(string(text), "WARN") {
		t.Errorf("--init-only where there is no iptables: %v\n%s", err, text)
	}
}

// TestLogFile: klog's flags have the log in a file, which begins anew when it is full.
func TestLogFile(t *testing.T) {
	t.Parallel()
	l := lab.New(t, testbed.Config{Pods: 1})
	l.ServeWeb()
	dir := t.TempDir()
	l.Start("--logtostderr=false", "--log_dir", dir, "--logging-format=json")
	l.Signal(syscall.SIGTERM)
	l.Wait()
	text, err := os.ReadFile(filepath.Join(dir, "sluice.log"))
	if err != nil || !strings.HasPrefix(string(text), `{"level":"INFO"`) || !strings.Contains(string(text), "serving") {
		t.Errorf("the file has %q, %v", text, err)
	}
	if l.Log.String() != "" {
		t.Errorf("standard error has %q", l.Log.String())
	}
}
