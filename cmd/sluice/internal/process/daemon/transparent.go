package daemon

import (
	"math/bits"

	"github.com/sluice-lb/sluice/redirect/transparent"
	"github.com/sluice-lb/sluice/tcp"
)

// transparency has connections come from clients' own addresses while there are rules for their answers.
type transparency struct {
	transparent.Rules
	tcp *tcp.Server
}

// newTransparency uses the highest bit of marks, which data path queue needs for more than half its numbers only. Even
// then the two meet on no packet: queue marks the first packet of a flow, and transparent marks answers.
func newTransparency(of *tcp.Server, marks uint32) *transparency {
	return &transparency{transparent.Rules{Mark: 1 << (bits.Len32(marks) - 1)}, of}
}

// Sync leaves the rules until the last connection that needs them has ended: it is called again from time to time.
func (t *transparency) Sync(ipv6, on bool) error {
	at := &t.tcp.Transparent[0]
	if ipv6 {
		at = &t.tcp.Transparent[1]
	}
	if !on {
		at.Store(false)
		if t.tcp.Stats().Transparent > 0 && !t.On(ipv6) {
			return nil // if there are any, they are of the process before
		}
		if t.tcp.Stats().Transparent > 0 {
			return t.Rules.Sync(ipv6, true) // where another program has removed them they are written again
		}
	}
	err := t.Rules.Sync(ipv6, on)
	at.Store(on && err == nil)
	return err
}
