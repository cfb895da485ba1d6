package main

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Descriptors of one event loop: its poller, its wake-up, and a listener in each family.
const descriptorsPerLoop = 4

// enoughDescriptors is the least limit an error should name: one that leaves some
// for connections and flows, on a host of a few Services.
func enoughDescriptors(loops int) int { return 48 + descriptorsPerLoop*loops }

// descriptorLimit returns how many descriptors connections and flows may hold
// together: the process's limit (RLIMIT_NOFILE, which Go has raised to its hard
// value at start) less what is open now, the loops among it, and a reserve for the
// rest of the program, listeners, iptables and HTTP requests among it.
func descriptorLimit(loops int) (int64, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("read descriptor limit: %w", err)
	}
	open, err := os.ReadDir("/proc/self/fd")
	if errors.Is(err, unix.EMFILE) {
		return 0, fmt.Errorf("the descriptor limit of %d is used up: raise it (ulimit -n) to %d or more", limit.Cur, enoughDescriptors(loops))
	} else if err != nil {
		return 0, fmt.Errorf("count open descriptors: %w", err)
	}
	most := int64(min(limit.Cur, 1<<30))
	free := most - int64(len(open)) - max(int64(8+descriptorsPerLoop/2*loops), most/8)
	if free < 4 {
		return 0, fmt.Errorf("the descriptor limit of %d leaves none for connections: raise it (ulimit -n) to %d or more", most, enoughDescriptors(loops))
	}
	return free, nil
}
