//go:build !linux && !windows

package session

import "syscall"

var shortages []syscall.Errno // which errors are this host's own is not known here
