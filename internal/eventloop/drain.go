package eventloop

import "context"

// Drain reports when the last of what a loop serves has ended. It belongs to its loop, but for Wait.
type Drain struct {
	done  chan struct{}
	ended bool
}

// Start starts draining. empty says whether there is nothing left already.
func (d *Drain) Start(empty bool) {
	if d.done == nil {
		d.done = make(chan struct{})
	}
	d.Check(empty)
}

// Started reports whether the loop is to take nothing new.
func (d *Drain) Started() bool { return d.done != nil }

// Check is called when something has ended. empty says whether it was the last.
func (d *Drain) Check(empty bool) {
	if empty && d.done != nil && !d.ended {
		d.ended = true
		close(d.done)
	}
}

// Wait waits until nothing is left, or ctx ends. Call it after Start, on any goroutine.
func (d *Drain) Wait(ctx context.Context) error {
	select {
	case <-d.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
