//go:build !linux

package nft

import (
	"context"
	"errors"
)

// Monitor notices nothing on this system.
type Monitor struct{}

// OpenMonitor returns errors.ErrUnsupported.
func OpenMonitor() (*Monitor, error) { return nil, errors.ErrUnsupported }

// Run returns errors.ErrUnsupported.
func (*Monitor) Run(context.Context, func()) error { return errors.ErrUnsupported }
