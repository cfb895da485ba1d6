//go:build !linux

package supervise

import (
	"errors"

	"go.uber.org/zap"
)

// Needed returns false.
func Needed() bool { return false }

// Run returns an error.
func Run(*zap.Logger) error { return errors.ErrUnsupported }
