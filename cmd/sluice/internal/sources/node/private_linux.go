package node

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Private refuses a directory in which other users could put a file of theirs: a socket at which
// they take over, or a link that is followed.
func Private(dir string) error {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return fmt.Errorf("look at directory %s: %w", dir, err)
	}
	if uid := os.Geteuid(); st.Uid != 0 && int(st.Uid) != uid {
		return fmt.Errorf("directory %s is that of user %d, and we are %d: others could take over", dir, st.Uid, uid)
	}
	if st.Mode&0o022 != 0 {
		return fmt.Errorf("directory %s can be written by other users (mode %#o), who could take over: give one of "+
			"mode 0700", dir, st.Mode&0o7777)
	}
	return nil
}
