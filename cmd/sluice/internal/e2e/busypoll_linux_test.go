package e2e

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// TestBusyPoll asks the kernel how the program's event loops wait.
func TestBusyPoll(t *testing.T) {
	l := lab.New(t, testbed.Config{Pods: 1})
	l.PublishWeb()
	l.Start("--loops", "2", "--busy-poll", "50us")
	if got := polling(t, l.Process.Pid()); got[50] != 2 {
		t.Errorf("how many epoll instances poll, by microseconds: %v; want 2 that do for 50", got)
	}
}

// polling counts the epoll instances of a process by the time that they poll, in microseconds.
func polling(t *testing.T, pid int) map[uint32]int {
	t.Helper()
	process, err := unix.PidfdOpen(pid, 0)
	testbed.Check(t, err)
	defer unix.Close(process)
	entries, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	testbed.Check(t, err)
	found := make(map[uint32]int)
	for _, entry := range entries {
		if what, err := os.Readlink(entry); err != nil || what != "anon_inode:[eventpoll]" {
			continue
		}
		number, err := strconv.Atoi(filepath.Base(entry))
		testbed.Check(t, err)
		fd, err := unix.PidfdGetfd(process, number, 0)
		testbed.Check(t, err)
		var params [8]byte // struct epoll_params, microseconds first
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.EPIOCGPARAMS, uintptr(unsafe.Pointer(&params)))
		_ = unix.Close(fd)
		if errno != 0 {
			t.Skipf("NOT TESTED: this needs Linux 6.9: %v", errno)
		}
		found[binary.NativeEndian.Uint32(params[:])]++
	}
	return found
}
