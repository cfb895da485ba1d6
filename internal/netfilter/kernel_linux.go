package netfilter

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// SetSysctl sets a number below net, as "ipv4/ip_forward", of the network namespace of the
// calling thread, unless it is that already. root is "/" but for tests.
func SetSysctl(root, name string, value int) error {
	path := filepath.Join(root, "proc/sys/net", name)
	have, err := ReadNumber(path)
	if err == nil && have != value {
		err = WriteNumber(path, value)
	}
	if err == nil {
		return nil
	}
	hint := ""
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		hint = ": set it on the host, or run in the host's network namespace with /proc/sys mounted writable"
	}
	return fmt.Errorf("set sysctl net.%s to %d: %w%s", strings.ReplaceAll(name, "/", "."), value, err, hint)
}

// ReadNumber reads a number that the kernel shows in a file.
func ReadNumber(path string) (int, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("%w: is its kernel module loaded?", err)
	} else if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}

// WriteNumber writes a number to such a file.
func WriteNumber(path string, value int) error {
	return os.WriteFile(path, strconv.AppendInt(nil, int64(value), 10), 0o644)
}

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
