package udp

import (
	"fmt"
	"path/filepath"
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

// AvoidGSO reports whether datagrams of equal length that are sent by one call might be corrupted on this host, and
// why. Server.DisableGSO is for that.
//
// Linux 7.0 to 7.1.4 give network cards that do a part of the segmentation wrong lengths and checksums (since commit
// b10b446ce7ad, until 78effd8 and 5f17ae0). One report is of a virtual machine with 6.17: its card leaves segmentation
// to the host, whose kernel cannot be known; no version is said to mend that one. Where no card segments, the kernel
// does so itself, and well. Cards that this network namespace does not show may do anything.
func AvoidGSO() (why string, avoid bool) {
	var name unix.Utsname
	if unix.Uname(&name) != nil {
		return "", false
	}
	release := unix.ByteSliceToString(name.Release[:])
	if !suspectGSO(release) {
		return "", false
	}
	cards, err := networkCards()
	if err != nil || len(cards) == 0 {
		return "Linux " + release, true
	}
	for _, card := range cards {
		if on, err := segmentsUDP(card); on || err != nil {
			return "Linux " + release + " with network card " + card, true
		}
	}
	return "", false
}

// suspectGSO reports whether AvoidGSO has to look at the cards of a kernel, whose release is as uname(2) returns it.
func suspectGSO(release string) bool {
	var major, minor, patch int
	n, _ := fmt.Sscanf(release, "%d.%d.%d", &major, &minor, &patch)
	return n >= 2 && (major == 6 && minor == 17 || major == 7 && (minor == 0 || minor == 1 && patch <= 4))
}

// networkCards returns the names of the interfaces that are hardware, or a virtual machine's. Others, such as those of
// pods, pass batches on to them.
func networkCards() (names []string, err error) {
	paths, err := filepath.Glob("/sys/class/net/*/device")
	for _, path := range paths {
		names = append(names, filepath.Base(filepath.Dir(path)))
	}
	return names, err
}
