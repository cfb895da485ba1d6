package daemon

import (
	"context"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/control/agent"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/process/notify"
	"github.com/sluice-lb/sluice/internal/eventloop"
)

// watchdog feeds the service manager's watchdog while all that forwards and applies lives.
type watchdog struct {
	limit     time.Duration
	loops     *eventloop.Group
	status    func() agent.Status
	reading   *turn        // of the source
	attempted atomic.Int64 // when the agent last ended an attempt, ns since 1970
	log       *zap.Logger
}

// newWatchdog makes the watchdog, with a limit of 0 where the service manager has none.
func (d *daemon) newWatchdog() *watchdog {
	limit, err := notify.Watchdog()
	if err != nil {
		d.Log.Warn("the watchdog of the service manager is not fed", zap.Error(err))
	}
	return &watchdog{limit: limit, loops: d.data.loops, status: d.agentStatus, reading: &d.reading, log: d.Log}
}

// run feeds it every half of its limit until ctx ends.
func (w *watchdog) run(ctx context.Context) {
	tick := time.NewTicker(w.limit / 2)
	defer tick.Stop()
	for {
		dead := w.dead(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case dead == "":
			notify.Alive(w.log)
		default:
			w.log.Error("the watchdog is not fed", zap.String("stuck", dead))
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// dead names what has done nothing for too long: a loop that does not run what is posted, the source or the agent if
// one turn does not end, or the agent if something waits and no attempt, failed or not, has ended since.
func (w *watchdog) dead(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, w.limit/4)
	defer cancel()
	if !turned(ctx, w.loops) {
		return "an event loop"
	}
	s, now := w.status(), time.Now()
	switch limit := max(w.limit, s.StaleAfter); {
	case w.reading.stuck(now, limit):
		return "reading Services"
	case s.Stuck(now):
		return "applying Services"
	}
	if s.QueuedSince.IsZero() {
		return ""
	}
	last := time.Unix(0, w.attempted.Load())
	if s.QueuedSince.After(last) {
		last = s.QueuedSince
	}
	if time.Since(last) > max(w.limit, s.StaleAfter) {
		return "applying Services"
	}
	return ""
}
