package session

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestShortage tells apart what this host lacks, however the error of the loop says so, and
// what is the backend's fault.
func TestShortage(t *testing.T) {
	for err, want := range map[error]bool{
		unix.EMFILE: true, unix.EADDRINUSE: true, unix.ECONNREFUSED: false, unix.EHOSTUNREACH: false,
		fmt.Errorf("watch descriptor 7: %w", os.NewSyscallError("epoll_ctl", unix.ENOSPC)): true,
		fmt.Errorf("watch descriptor 7: %w", os.NewSyscallError("epoll_ctl", unix.ENOMEM)): true,
		os.ErrDeadlineExceeded: false,
	} {
		if Shortage(err) != want {
			t.Errorf("%v is a shortage: %v, want %v", err, !want, want)
		}
	}
}
