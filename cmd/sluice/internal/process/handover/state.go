package handover

import (
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/control/agent"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/journal"
	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/flows/report"
	"github.com/sluice-lb/sluice/lb/balancer"
	"github.com/sluice-lb/sluice/sctp"
	"github.com/sluice-lb/sluice/tcp"
	"github.com/sluice-lb/sluice/udp"
)

// State is what a process has to give, or receives. All but the last four must be set.
type State struct {
	Program string // version of the program
	Loops   *eventloop.Group
	LB      *balancer.Balancer
	TCP     *tcp.Server
	UDP     *udp.Server
	SCTP    *sctp.Server
	Agent   *agent.Agent
	Journal *journal.Journal
	Kernel  *report.Flows // what the kernel forwards

	// Manifests returns the files that objects are applied of, and Loses why this process would take away what such a
	// file of the other process says. Both may be nil.
	Manifests func() []string
	Loses     func(manifests []string) error

	// Patience is how long the other side may take for any step while all connections
	// go on. 0: 20 s.
	Patience time.Duration
	// Freeze is how long connections may be paused for a hand-over before it is given
	// up. 0: 5 s.
	Freeze time.Duration
}
