package netfilter

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// AwaitReaders waits until no packet is in the middle of rules that it began to read
// before the call: for an RCU grace period, some 10 ms. Two sets, or two tables, that
// change one after the other are for such a packet two states that never were together:
// it may have read the first before its change and the second after it.
//
// Closing a packet socket waits for a grace period (packet_release in the kernel's
// af_packet.c). membarrier(2) does too, but not on one CPU nor with nohz_full. It needs
// CAP_NET_RAW.
func AwaitReaders() error {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0) // protocol 0 receives nothing
	if err != nil {
		return fmt.Errorf("open packet socket to wait for an RCU grace period: %w", err)
	}
	return unix.Close(fd)
}
