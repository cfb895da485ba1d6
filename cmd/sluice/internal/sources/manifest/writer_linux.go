package manifest

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// writerOf reports whether a program has a file open for writing: the kernel grants no read lease then (fcntl(2)). It
// grants none on file systems of other hosts either, nor of another user's files.
func writerOf(path string) writer {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return unknown
	}
	defer f.Close()
	conn, err := f.SyscallConn()
	if err != nil {
		return unknown
	}
	found := unknown
	err = conn.Control(func(fd uintptr) {
		_, err := unix.FcntlInt(fd, unix.F_SETLEASE, unix.F_RDLCK)
		switch {
		case err == nil:
			found = none
			_, _ = unix.FcntlInt(fd, unix.F_SETLEASE, unix.F_UNLCK) // so does closing
		case errors.Is(err, unix.EAGAIN):
			found = open
		}
	})
	if err != nil {
		return unknown
	}
	return found
}
