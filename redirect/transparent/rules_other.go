//go:build !linux

package transparent

import (
	"context"
	"errors"
)

type state struct{}

func (*state) sync(_, on bool) error {
	if on {
		return errors.ErrUnsupported
	}
	return nil
}

func (*state) verify() bool { return true }

func (*state) isOn(bool) bool { return false }

func cleanup(context.Context) error { return errors.ErrUnsupported }
