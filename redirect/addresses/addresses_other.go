//go:build !linux && !windows

package addresses

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
)

// host can do nothing on this system.
type host struct{}

func (host) find(string) (uint32, error) {
	return 0, fmt.Errorf("put addresses on an interface: %w on this platform", errors.ErrUnsupported)
}

func (host) list(bool) ([]address, error) { return nil, errors.ErrUnsupported }

func (host) add(address) (bool, error) { return false, errors.ErrUnsupported }

func (host) ready(context.Context, []address) error { return errors.ErrUnsupported }

func (host) remove(address) error { return errors.ErrUnsupported }

func (host) busy(bool) (map[netip.Addr]bool, error) { return nil, errors.ErrUnsupported }

func removeDevice() error { return nil }
