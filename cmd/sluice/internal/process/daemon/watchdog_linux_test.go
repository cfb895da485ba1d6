package daemon

import (
	"context"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/control/agent"
	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// TestWatchdog: what does nothing for too long is named; what fails again and again is not.
func TestWatchdog(t *testing.T) {
	loops, err := eventloop.NewGroup(2)
	testbed.Check(t, err)
	defer func() { testbed.Check(t, loops.Close()) }()
	var status agent.Status
	w := &watchdog{limit: time.Minute, loops: loops, status: func() agent.Status { return status },
		reading: new(turn), log: zap.NewNop()}
	want := func(when, dead string) {
		t.Helper()
		if got := w.dead(t.Context()); got != dead {
			t.Errorf("%s: %q is stuck, want %q", when, got, dead)
		}
	}
	want("all is well", "")
	end := w.reading.begin()
	w.reading.begin()() // a part of the turn
	long := time.Now().Add(-2 * time.Minute)
	w.reading.since.Store(&long)
	want("the source does not turn", "reading Services")
	end()
	status.LastTurn = time.Now().Add(-time.Hour)
	want("the agent does not turn", "applying Services")
	status.LastTurn = time.Time{}
	want("both turn", "")
	status.QueuedSince = time.Now().Add(-2 * time.Minute)
	want("a change waits", "applying Services")
	w.attempted.Store(time.Now().UnixNano())
	want("an attempt has failed", "")
	w.attempted.Store(time.Now().Add(-90 * time.Second).UnixNano())
	want("nothing was attempted since", "applying Services")
	status.StaleAfter = 3 * time.Minute
	want("two sync periods are longer", "")

	release := make(chan struct{})
	testbed.Check(t, loops.Loops()[1].Post(func() { <-release }))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if turned(ended, loops) {
		t.Error("a loop that is stuck turns")
	}
	close(release)
	want("the loop goes on", "")
}
