//go:build !linux && !windows

package redirect

import (
	"errors"
	"fmt"
)

func newAddressHost(bool, string) (addressHost, error) {
	return nil, fmt.Errorf("put addresses on an interface: %w on this platform", errors.ErrUnsupported)
}

func cleanupAddresses(bool) error { return errors.ErrUnsupported }
