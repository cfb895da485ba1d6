package load

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/mmsg"
)

const (
	maxWindow   = 64
	maxDatagram = 2048
	maxBatch    = 1<<16 - 1 - 20 - 8 // bytes that go as one: what an IPv4 packet holds
)

// readSize is how many bytes one message that is received may have.
func readSize(gro bool) int {
	if gro {
		return 1 << 16
	}
	return maxDatagram
}

// receiveBatches has a socket give datagrams that came together as one (UDP_GRO, udp(7)).
func receiveBatches(fd int) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_GRO, 1); err != nil {
		return fmt.Errorf("receive batches of datagrams (UDP_GRO): %w", err)
	}
	return nil
}

// burst is datagrams of one length that leave a connected socket together.
type burst struct {
	headers []unix.Mmsghdr
	data    [][]byte
}

// newBurst makes one of n datagrams. With gso they are one message, and part where they have
// to (UDP_SEGMENT, udp(7)).
func newBurst(n, size int, gso bool) *burst {
	b := &burst{headers: make([]unix.Mmsghdr, n)}
	vectors := make([]unix.Iovec, n)
	for i := range n {
		b.data = append(b.data, make([]byte, size))
		vectors[i].Base = &b.data[i][0]
		vectors[i].SetLen(size)
		b.headers[i].Hdr.Iov = &vectors[i]
		b.headers[i].Hdr.SetIovlen(1)
	}
	if gso {
		b.headers = b.headers[:1]
		control := new(mmsg.ControlBuffer)
		b.headers[0].Hdr.SetIovlen(n)
		mmsg.Address(&b.headers[0].Hdr, nil, control, mmsg.PutSegmentSize(control[:], size))
	}
	return b
}

// send sends all of it, or returns an error.
func (b *burst) send(fd int) error {
	sent, err := mmsg.Send(fd, b.headers)
	if err == nil && sent == len(b.headers) {
		return nil
	}
	return fmt.Errorf("send: %d of %d messages went: %w", sent, len(b.headers), err)
}
