package flows

import (
	"fmt"
	"testing"

	"github.com/sluice-lb/sluice/internal/netfilter/conntrack"
	"github.com/sluice-lb/sluice/lb"
)

// TestEndOf: how a connection has ended, by the last state of its entry.
func TestEndOf(t *testing.T) {
	const answered = conntrack.SeenReply
	for _, c := range []struct {
		protocol lb.Protocol
		state    conntrack.State
		status   conntrack.Status
		left     bool
		want     lb.End
	}{
		{lb.TCP, conntrack.TCPTimeWait, answered, false, lb.Normal},
		{lb.TCP, conntrack.TCPTimeWait, answered, true, lb.Normal}, // the client has its port again
		{lb.TCP, conntrack.TCPLastAck, answered, false, lb.Normal},
		{lb.TCP, conntrack.TCPClose, answered, false, lb.Reset},
		{lb.TCP, conntrack.TCPClose, 0, true, lb.ServerConnect},
		{lb.TCP, conntrack.TCPSynSent, 0, false, lb.ServerTimeout},
		{lb.TCP, conntrack.TCPSynSent, 0, true, lb.Killed},
		{lb.TCP, conntrack.TCPSynRecv, answered, false, lb.ClientConnect},
		{lb.TCP, conntrack.TCPEstablished, answered, false, lb.IdleEnd},
		{lb.TCP, conntrack.TCPEstablished, answered, true, lb.Killed},
		{lb.TCP, conntrack.TCPCloseWait, answered, false, lb.HalfTimeout},
		{lb.TCP, 0, answered, false, lb.Normal},
		{lb.UDP, 0, 0, false, lb.Normal},
		{lb.UDP, 0, answered, true, lb.Killed},
		{lb.SCTP, conntrack.SCTPClosed, answered, false, lb.Normal},
		{lb.SCTP, conntrack.SCTPClosed, 0, false, lb.ServerTimeout},
		{lb.SCTP, conntrack.SCTPCookieWait, answered, false, lb.ServerTimeout},
		{lb.SCTP, conntrack.SCTPEstablished, answered, false, lb.IdleEnd},
		{lb.SCTP, conntrack.SCTPShutdownSent, answered, false, lb.HalfTimeout},
	} {
		e := &Entry{Protocol: c.protocol, State: c.state, Status: c.status}
		if c.left {
			e.Left = 1
		}
		if got := EndOf(e); got != c.want {
			t.Errorf("%s is %s, want %s", fmt.Sprintf("%+v", c), got, c.want)
		}
	}
}
