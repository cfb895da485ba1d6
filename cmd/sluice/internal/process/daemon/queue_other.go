//go:build !linux

package daemon

import (
	"context"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/control/agent"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/metrics"
	"github.com/sluice-lb/sluice/internal/flows"
	"github.com/sluice-lb/sluice/internal/flows/report"
	"github.com/sluice-lb/sluice/internal/shares"
	"github.com/sluice-lb/sluice/lb/balancer"
)

// queues is nothing on this system, which has no data path queue.
type queues struct{}

func newQueues(*zap.Logger) *queues { return nil }

func (*steering) queueEngine(context.Context, *agent.Family, *steeredFamily) {}

func (*steering) warnMarks(context.Context) {}

func (*queues) choose(*balancer.Balancer, *flows.Watch, shares.Shares) {}

func (*queues) tell(*report.Flows) {}

func (*queues) inherit() {}

func (*queues) reportTo(*reports) {}

func (*queues) stats() metrics.Queue { return metrics.Queue{} }

func (*queues) close() {}
