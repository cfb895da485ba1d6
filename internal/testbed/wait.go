package testbed

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// Patience is how long tests and programs wait for what must happen.
const Patience = 30 * time.Second

// The pause between two looks at what no event reports is shortest where a look costs nothing. A look that starts
// programs costs what others on the machine wait for, most of all in the machine of bench/vm, where computing takes ten
// times as long and waiting takes no time.
const (
	pollInterval = 3 * time.Millisecond
	longestPause = time.Second
)

// pause is how long to wait after a look that took so long, if what is awaited has to come within a limit: looks take
// about a fifth of the time, and what has come in time is found by a tenth of the limit later.
func pause(took, limit time.Duration) time.Duration {
	return max(min(4*took, longestPause, limit/10), pollInterval)
}

// Poll calls is until it returns true or an error, for at most limit. It is for states
// that no event reports; what describes the state that is awaited.
func Poll(ctx context.Context, limit time.Duration, what string, is func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		began := time.Now()
		ok, err := is()
		if err != nil {
			return fmt.Errorf("wait for %s: %w", what, err)
		}
		if ok {
			return nil
		}
		select {
		case <-time.After(pause(time.Since(began), limit)):
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: not within %v: %w", what, limit, ctx.Err())
		}
	}
}

// Eventually is [Poll] for tests, within [Patience].
func Eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	Within(t, Patience, what, is)
}

// Within is [Eventually] within a time of the test's own.
func Within(t testing.TB, limit time.Duration, what string, is func() bool) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for began := time.Now(); !is(); began = time.Now() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", limit, what)
		}
		time.Sleep(pause(time.Since(began), limit)) // a pause between two looks at what no event reports
	}
}
