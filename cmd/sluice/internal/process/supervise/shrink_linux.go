package supervise

import (
	"bufio"
	"fmt"
	"os"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"
)

// region is a range of addresses.
type region struct{ start, end uintptr }

// shrink gives back the memory that only the start of the program needed. If it fails the supervisor works as well.
func shrink() {
	for _, r := range cleanRegions() {
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, r.start, r.end-r.start, unix.MADV_DONTNEED)
	}
	debug.FreeOSMemory()
}

// cleanRegions returns the read-only mappings of files, whose pages the kernel reads again when they are used.
// It leaves out mappings with pages of their own, which an executable that was relocated has.
func cleanRegions() (regions []region) {
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return nil
	}
	defer f.Close()
	var of *region // the mapping that the lines are about; nil: not one to look at
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		var r region
		switch _, err := fmt.Sscanf(lines.Text(), "%x-%x ", &r.start, &r.end); {
		case err == nil && len(fields) == 6 && fields[1][1] == '-' && strings.HasPrefix(fields[5], "/"):
			of = &r
		case err == nil:
			of = nil
		case of != nil && len(fields) == 3 && fields[0] == "Anonymous:" && fields[1] == "0":
			regions = append(regions, *of)
		}
	}
	return regions
}
