//go:build !linux && !windows

package addresses

import (
	"errors"
	"fmt"
)

func newAddressHost(bool, string) (addressHost, error) {
	return nil, fmt.Errorf("put addresses on an interface: %w on this platform", errors.ErrUnsupported)
}

func cleanup(bool) error { return errors.ErrUnsupported }
