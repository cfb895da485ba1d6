package queue

import (
	"context"
	"errors"
	"syscall"
	"time"
)

// awaitLeast and awaitMost are how often it is tried whether another process has let go of the queues.
const (
	awaitLeast = time.Millisecond
	awaitMost  = time.Second
)

// Await is Start as soon as no other process answers, which is no event.
func (s *Server) Await(ctx context.Context) error {
	for wait := awaitLeast; ; wait = min(2*wait, awaitMost) {
		if err := s.Start(); !errors.Is(err, syscall.EPERM) {
			return err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
