package node

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// TestLock: a second process is refused while the first serves, and waits for one that ends.
func TestLock(t *testing.T) {
	testbed.NewHostsT(t, "node")[0].Enter(t)
	l, err := NewLock()
	if err != nil {
		t.Fatal(err)
	}
	const patience = 50 * time.Millisecond
	if _, err := LockWithin(t.Context(), patience); err == nil || errors.Is(err, errEnding) {
		t.Errorf("LockWithin = %v, want that another serves", err)
	}
	l.Ending()
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	if _, err := LockWithin(ctx, patience); !errors.Is(err, errEnding) || ctx.Err() == nil {
		t.Errorf("LockWithin = %v before its time, want it to wait for the one that ends", err)
	}
	l.Release()
	next, err := NewLock()
	if err != nil {
		t.Error(err)
	}
	next.Release()
	next.Ending() // of the zero Lock
}
