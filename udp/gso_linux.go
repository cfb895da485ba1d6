package udp

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// segmentation reports whether the kernel knows UDP_SEGMENT. One that does not (before
// 4.18) ignores the control message, and would join what it is to keep apart.
var segmentation = sync.OnceValue(func() bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }()
	_, err = unix.GetsockoptInt(fd, unix.SOL_UDP, unix.UDP_SEGMENT)
	return err == nil
})

// enableGRO makes the kernel pass on together what has arrived together: datagrams of one
// sender, all but the last equally long, up to 64 KiB, each message with the length of its
// datagrams (UDP_GRO, udp(7)). A kernel before 5.0 passes them one by one.
func enableGRO(fd int) { _ = unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_GRO, 1) }

// CorruptsGSO returns the release of the running kernel and reports whether that corrupts
// datagrams of equal length that are sent by one call: on some network cards Linux 7.0 to
// 7.1.4 do. Server.DisableGSO is for those.
func CorruptsGSO() (release string, corrupts bool) {
	var name unix.Utsname
	if unix.Uname(&name) != nil {
		return "", false
	}
	release = unix.ByteSliceToString(name.Release[:])
	return release, corruptsGSO(release)
}

// corruptsGSO is CorruptsGSO for a release as uname(2) returns it.
func corruptsGSO(release string) bool {
	var major, minor, patch int
	n, _ := fmt.Sscanf(release, "%d.%d.%d", &major, &minor, &patch)
	return n >= 2 && major == 7 && (minor == 0 || minor == 1 && patch <= 4)
}
