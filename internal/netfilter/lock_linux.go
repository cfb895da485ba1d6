package netfilter

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// lockFile returns where the xtables lock is, as iptables finds it (iptables(8)).
func lockFile() string { return cmp.Or(os.Getenv("XTABLES_LOCKFILE"), "/run/xtables.lock") }

// lockError makes the error of an iptables that could not take the xtables lock ErrLocked. Other errors stay as they
// are.
func lockError(err error) error {
	if strings.Contains(err.Error(), "Can't lock") {
		return locked(err)
	}
	return err
}

// locked adds to an error which process holds the xtables lock, if we can see it: one of another process namespace
// cannot be seen.
func locked(err error) error {
	holder := cmp.Or(lockHolder(lockFile()), "another process")
	return fmt.Errorf("%w: %w by %s", err, ErrLocked, holder)
}

// lockHolder returns the process that has locked a file, empty if none is known.
// The lines of /proc/locks are such as "1: FLOCK ADVISORY WRITE 123 00:17:456 0
// EOF", with the device of the file in hexadecimal and its inode (proc(5)); those of
// processes that wait have an arrow after the number.
func lockHolder(path string) string {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return ""
	}
	file := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(locks)) {
		var n, pid int
		var kind, mode, at string
		_, err := fmt.Sscanf(line, "%d: FLOCK %s %s %d %s", &n, &kind, &mode, &pid, &at)
		if err == nil && at == file && pid > 0 {
			return fmt.Sprintf("process %d (%s)", pid, commandOf(pid))
		}
	}
	return ""
}

// commandOf returns the beginning of a process's command line.
func commandOf(pid int) string {
	const most = 100
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	b = bytes.TrimRight(bytes.ReplaceAll(b, []byte{0}, []byte{' '}), " ")
	return cmp.Or(string(b[:min(len(b), most)]), "ended")
}
