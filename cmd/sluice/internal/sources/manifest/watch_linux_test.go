package manifest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestWatchWithoutInotify runs itself in a user namespace whose limits of
// inotify are exhausted from the start: changes are found by looking, and a
// warning says so.
func TestWatchWithoutInotify(t *testing.T) {
	const limitVariable = "SLUICE_TEST_INOTIFY_LIMIT"
	if limit := os.Getenv(limitVariable); limit != "" {
		if err := os.WriteFile("/proc/sys/user/"+limit, []byte("0"), 0); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "a.yaml")
		write(t, path, service("a", "10.96.0.1"))
		w := watch(t, &Loader{Paths: []string{path}, Rescan: time.Hour})
		write(t, path, service("a", "10.96.0.2"))
		r := w.until("a=10.96.0.2")
		if len(r.Warnings) != 2 || !strings.Contains(r.Warnings[0].Reason, "cannot be watched") {
			t.Errorf("warnings: %v", r.Warnings)
		}
		return
	}
	for _, limit := range []string{"max_inotify_instances", "max_inotify_watches"} {
		t.Run(limit, func(t *testing.T) {
			cmd := exec.Command("/proc/self/exe", "-test.run=^TestWatchWithoutInotify$", "-test.v")
			cmd.Env = append(os.Environ(), limitVariable+"="+limit)
			cmd.SysProcAttr = &syscall.SysProcAttr{
				Cloneflags:  syscall.CLONE_NEWUSER,
				UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
				GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
			}
			if out, err := cmd.CombinedOutput(); err != nil {
				if len(out) == 0 {
					t.Skipf("SKIPPED, NOT TESTED: no user namespace to limit inotify in: %v", err)
				}
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
