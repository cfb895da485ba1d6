package node

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// filesPerLoop is the file descriptors of one event loop: its poller, its wake-up, and a
// listener in each family.
const filesPerLoop = 4

// enoughFiles is the least limit that an error should name: one that leaves some file
// descriptors for connections and flows, on a host of a few Services.
func enoughFiles(loops int) int { return 48 + filesPerLoop*loops }

// FileLimit returns how many file descriptors connections and flows may hold together: the
// process's limit (RLIMIT_NOFILE, which Go has raised to its hard value at start) less what
// is open now, the loops among it, and a reserve for the rest of the program, such as
// listeners, iptables and HTTP requests. 0: no limit is known.
func FileLimit(loops int) (int64, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("read file descriptor limit: %w", err)
	}
	open, err := os.ReadDir("/proc/self/fd")
	if errors.Is(err, unix.EMFILE) {
		return 0, fmt.Errorf("the file descriptor limit of %d is exhausted: raise it (ulimit -n) to %d or more",
			limit.Cur, enoughFiles(loops))
	} else if err != nil {
		return 0, fmt.Errorf("count open file descriptors: %w", err)
	}
	most := int64(min(limit.Cur, 1<<30))
	free := most - int64(len(open)) - max(int64(8+filesPerLoop/2*loops), most/8)
	if free < 4 {
		return 0, fmt.Errorf("the file descriptor limit of %d leaves none for connections: raise it (ulimit -n) to "+
			"%d or more",
			most, enoughFiles(loops))
	}
	return free, nil
}
