//go:build !linux

package daemon

import (
	"context"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/control/agent"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/metrics"
)

// queues is nothing on this system, which has no data path queue.
type queues struct{}

func (*daemon) newQueues() *queues { return nil }

func (*steering) queueEngine(context.Context, *agent.Family, *steeredFamily) {}

func (*steering) warnMarks(context.Context) {}

func (*queues) stats() metrics.Queue { return metrics.Queue{} }

func (*queues) close() {}
