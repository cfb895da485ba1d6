package netfilter

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Settle waits until no packet is in the middle of rules that it began to read before
// the call. Two sets, or two tables, that change one after the other are for such a
// packet two states that never were together: it may have read the first before its
// change and read the second after it.
//
// Rules are read in a critical section of RCU, and so one of its grace periods has to
// pass, some 10 ms. Closing a packet socket waits for one (packet_release in the
// kernel's af_packet.c); so does membarrier(2), but not on one CPU nor with nohz_full.
// It needs CAP_NET_RAW.
func Settle() error {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0) // protocol 0 receives nothing
	if err != nil {
		return fmt.Errorf("open packet socket to wait for packets on their way: %w", err)
	}
	return unix.Close(fd)
}
