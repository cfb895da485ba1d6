package netfilter

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Release returns the version of the kernel, as in "6.1.0-13-cloud-amd64".
func Release() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil { // it fails only for a bad pointer
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

// AtLeast reports whether the release of a kernel is of a version, or newer. One that
// cannot be read is taken for new.
func AtLeast(release string, major, minor int) bool {
	var a, b int
	if _, err := fmt.Sscanf(release, "%d.%d", &a, &b); err != nil {
		return true
	}
	return a > major || a == major && b >= minor
}
