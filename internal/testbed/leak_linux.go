package testbed

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// LimitDescriptors lets this process have no file descriptor of number n or above, but for those that are open, until
// restore is called: with n 0 none can be opened.
func LimitDescriptors(n uint64) (restore func() error, err error) {
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		return nil, fmt.Errorf("read descriptor limit: %w", err)
	}
	set := func(cur uint64) error {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: cur, Max: was.Max}); err != nil {
			return fmt.Errorf("set descriptor limit to %d: %w", cur, err)
		}
		return nil
	}
	return func() error { return set(was.Cur) }, set(n)
}

func openFiles(pid int) ([]string, error) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list descriptors: %w", err)
	}
	var names []string
	for _, e := range entries {
		name, err := os.Readlink(filepath.Join(dir, e.Name()))
		if errors.Is(err, os.ErrNotExist) {
			continue // closed since, as is the descriptor that read the directory
		}
		if err != nil {
			return nil, fmt.Errorf("list descriptors: %w", err)
		}
		names = append(names, name)
	}
	return names, nil
}

// residentBytes reads smaps_rollup (Linux 4.14), since the figures in status and
// statm are inaccurate (proc(5)).
func residentBytes(pid int) (int64, error) {
	path := fmt.Sprintf("/proc/%d/smaps_rollup", pid)
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("measure memory: %w", err)
	}
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "Rss:" && fields[2] == "kB" {
			kib, err := strconv.ParseInt(fields[1], 10, 64)
			if err != nil {
				return 0, fmt.Errorf("measure memory: read %s: %w", path, err)
			}
			return kib << 10, nil
		}
	}
	return 0, fmt.Errorf("measure memory: no Rss in %s", path)
}

// Alive reports whether a process runs; one that has ended and was not waited for yet
// does not.
func Alive(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	_, after, _ := strings.Cut(string(b), ") ")
	return !strings.HasPrefix(after, "Z") && !strings.HasPrefix(after, "X")
}
