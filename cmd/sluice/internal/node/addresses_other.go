//go:build !linux

package node

import "errors"

// addressNotice is not built for this system.
type addressNotice struct{}

func newAddressNotice() (*addressNotice, error) { return nil, errors.ErrUnsupported }

func (*addressNotice) changed() bool { return true }

func (*addressNotice) close() error { return nil }
