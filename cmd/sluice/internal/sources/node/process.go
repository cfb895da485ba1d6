package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/internal/netfilter/sysctl"
)

// errEnding is the error of NewLock while a process that ends writes its last rules.
var errEnding = errors.New("another Sluice that steers the traffic of this network namespace is ending")

// HeldError says that another Sluice has the instance lock.
type HeldError struct{ holder string }

func (e *HeldError) Error() string {
	return fmt.Sprintf("another Sluice%s steers the traffic of this network namespace: end it first", e.holder)
}

// LockWithin is NewLock, but waits that long for another process that holds it to end, and until ctx ends for one that
// has said so.
func LockWithin(ctx context.Context, patience time.Duration) (Lock, error) {
	impatient := time.After(patience)
	look := time.NewTicker(20 * time.Millisecond) // nothing reports the end of an unrelated process
	defer look.Stop()
	for {
		l, err := NewLock()
		if err == nil {
			return l, nil
		}
		if errors.Is(err, errEnding) {
			impatient = time.After(patience) // it may have been taken by yet another
		}
		select {
		case <-ctx.Done():
			return 0, err
		case <-impatient:
			return 0, err
		case <-look.C:
		}
	}
}

// TuneConntrack applies the kernel settings that steered packets need. Settings that differ
// without harm are logged as warnings.
func TuneConntrack(c sysctl.Conntrack, log *zap.Logger) error {
	warnings, err := c.Apply()
	for _, warning := range warnings {
		log.Warn("conntrack", zap.String("warning", warning))
	}
	if apart := sysctl.DisableEarlyDemux(); apart != nil {
		err = errors.Join(err, fmt.Errorf("keep two connections from one client port apart: %w", apart))
	}
	return err
}
