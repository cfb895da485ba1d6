package daemon

import (
	"context"

	"github.com/sluice-lb/sluice/internal/eventloop"
)

// turned reports whether every loop gets to what is posted to it before ctx ends.
func turned(ctx context.Context, loops *eventloop.Group) bool {
	all := loops.Loops()
	turns := make(chan struct{}, len(all))
	for _, l := range all {
		if l.Post(func() { turns <- struct{}{} }) != nil {
			return false
		}
	}
	for range all {
		select {
		case <-turns:
		case <-ctx.Done():
			return false
		}
	}
	return true
}
