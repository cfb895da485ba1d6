package conntrack

import (
	"time"

	"github.com/sluice-lb/sluice/lb"
)

// Timeouts are how long entries live without a packet, by their state. The zero value knows none.
type Timeouts struct {
	tcp            [TCPSynSent2 + 1]time.Duration
	sctp           [SCTPShutdownAckSent + 1]time.Duration
	udp, udpStream time.Duration
}

// Read reads what holds in the network namespace of the calling thread. What cannot be read is not known.
func (t *Timeouts) Read() error { return t.read() }

// Quiet returns how long ago an entry, which may have ended, has seen its last packet; false: it is not known. It is
// exact to the second, and wrong where the kernel has a timeout of its own for an entry, as for data that is not
// acknowledged.
func (t *Timeouts) Quiet(e *Entry) (time.Duration, bool) {
	lives := t.of(e)
	return lives - e.Left, lives > 0 && e.Left <= lives
}

// of returns how long an entry lives without a packet; 0: it is not known.
func (t *Timeouts) of(e *Entry) time.Duration {
	switch {
	case e.Protocol == lb.UDP && e.Status&Assured != 0:
		return t.udpStream
	case e.Protocol == lb.UDP:
		return t.udp
	case e.Protocol == lb.TCP && int(e.State) < len(t.tcp):
		return t.tcp[e.State]
	case e.Protocol == lb.SCTP && int(e.State) < len(t.sctp):
		return t.sctp[e.State]
	}
	return 0
}
