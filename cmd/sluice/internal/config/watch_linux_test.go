package config

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// TestWatchBlind runs itself in a user namespace without inotify: that is said once, and a
// change is found by looking.
func TestWatchBlind(t *testing.T) {
	if os.Getenv("SLUICE_TEST_BLIND") == "" {
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestWatchBlind$", "-test.v")
		cmd.Env = append(os.Environ(), "SLUICE_TEST_BLIND=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}}
		if out, err := cmd.CombinedOutput(); err != nil && len(out) == 0 {
			t.Skipf("SKIPPED, NOT TESTED: no user namespace to limit inotify in: %v", err)
		} else if err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	put(t, "/proc/sys/user/max_inotify_instances", "0")
	file := write(t, "f.yaml", header)
	x := watch(t, Watcher{Rescan: 10 * time.Millisecond}, file)
	x.wantError(x.blind, "f.yaml")
	put(t, file, header+"mode: ipvs\n")
	x.wantIPVS()
}
