package main

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// descriptorLimit returns how many descriptors connections and flows may hold
// together: the process's limit (RLIMIT_NOFILE, which Go has raised to its hard
// value at start) less what is open now and a reserve for the rest of the
// program, iptables and HTTP requests among it.
func descriptorLimit() (int64, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("read descriptor limit: %w", err)
	}
	open, err := os.ReadDir("/proc/self/fd")
	if errors.Is(err, unix.EMFILE) {
		return 0, fmt.Errorf("the descriptor limit of %d is used up: raise it (ulimit -n) to 64 or more", limit.Cur)
	} else if err != nil {
		return 0, fmt.Errorf("count open descriptors: %w", err)
	}
	most := int64(min(limit.Cur, 1<<30))
	free := most - int64(len(open)) - max(16, most/8)
	if free < 4 {
		return 0, fmt.Errorf("the descriptor limit of %d leaves none for connections: raise it (ulimit -n) to 64 or more", most)
	}
	return free, nil
}
