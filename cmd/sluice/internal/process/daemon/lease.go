package daemon

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"
)

// renewals is how often a lease is renewed in its lifetime, so that a process that is paused for less than nine tenths
// of it does not lose its rules; and renewLeast is the shortest time in between.
const (
	renewals   = 10
	renewLeast = 100 * time.Millisecond
)

// renew keeps the rules in force until ctx ends, and for their lifetime from then on.
func (s *steering) renew(ctx context.Context) {
	lifetime := s.config.Kernel.RulesLifetime
	if lifetime == 0 || len(s.leases) == 0 {
		return // they are in force for ever
	}
	next := time.NewTicker(max(lifetime/renewals, renewLeast))
	defer next.Stop()
	failed := false
	for ended := false; !ended; {
		select {
		case <-ctx.Done():
			ended = true
		case <-next.C:
		}
		var errs []error
		for _, l := range s.leases {
			errs = append(errs, l.Renew())
		}
		err := errors.Join(errs...)
		if err != nil && !failed {
			s.log.Warn("the lifetime of rules is not renewed, they end with it", zap.Duration("lifetime", lifetime),
				zap.Error(err))
		}
		failed = err != nil
	}
}
