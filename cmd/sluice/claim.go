package main

import (
	"context"
	"time"

	"go.uber.org/zap"
)

const (
	// claimPatience is how long a process that is ending may still hold the claim.
	claimPatience = time.Second

	// inheritPatience is how long one may that has handed everything over.
	inheritPatience = time.Minute
)

// awaitClaim is newClaim, which waits for the present holder for so long to end.
func awaitClaim(ctx context.Context, patience time.Duration) (claim, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	look := time.NewTicker(20 * time.Millisecond) // nothing tells of the end of a stranger
	defer look.Stop()
	for {
		c, err := newClaim()
		if err == nil {
			return c, nil
		}
		select {
		case <-ctx.Done():
			return 0, err
		case <-look.C:
		}
	}
}

// inheritClaim takes the claim of the process that everything was taken over from, which
// ends at once.
func (p *program) inheritClaim(ctx context.Context) {
	var err error
	if p.claim, err = awaitClaim(ctx, inheritPatience); err != nil && ctx.Err() == nil {
		p.log.Warn("a --cleanup would not notice that this process serves", zap.Error(err))
	}
}
