package testbed

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// Patience is how long tests and programs wait for what must happen.
const Patience = 30 * time.Second

// pollInterval is the pause between two looks at what no event reports.
const pollInterval = 3 * time.Millisecond

// Poll calls is until it returns true or an error, for at most limit. It is for states
// that no event reports; what describes the state that is awaited.
func Poll(ctx context.Context, limit time.Duration, what string, is func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		ok, err := is()
		if err != nil {
			return fmt.Errorf("wait for %s: %w", what, err)
		}
		if ok {
			return nil
		}
		select {
		case <-time.After(pollInterval):
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
	for deadline := time.Now().Add(limit); !is(); {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", limit, what)
		}
		time.Sleep(pollInterval) // a pause between two looks at what no event reports
	}
}
