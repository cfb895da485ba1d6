//go:build !linux

package eventloop

import (
	"errors"
	"fmt"
	"time"
)

// Loop is one event loop. It exists on Linux only.
type Loop struct{}

// Group is the loops of one process.
type Group struct{}

// NewGroup reports errors.ErrUnsupported: there is no epoll here.
func NewGroup(int) (*Group, error) {
	return nil, fmt.Errorf("start event loops: %w on this platform", errors.ErrUnsupported)
}

// Loops returns no loop.
func (*Group) Loops() []*Loop { return nil }

// BusyPoll reports errors.ErrUnsupported.
func (*Group) BusyPoll(time.Duration) error { return errors.ErrUnsupported }

// Close does nothing.
func (*Group) Close() error { return nil }
