package node

import (
	"context"
	"time"
)

// LockWithin is NewLock, but waits that long for another process that holds it to end.
func LockWithin(ctx context.Context, patience time.Duration) (Lock, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	look := time.NewTicker(20 * time.Millisecond) // nothing reports the end of an unrelated process
	defer look.Stop()
	for {
		l, err := NewLock()
		if err == nil {
			return l, nil
		}
		select {
		case <-ctx.Done():
			return 0, err
		case <-look.C:
		}
	}
}
