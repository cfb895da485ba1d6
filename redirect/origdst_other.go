//go:build !linux

package redirect

import (
	"errors"
	"net/netip"
)

func originalDst(int) (netip.AddrPort, error) { return netip.AddrPort{}, errors.ErrUnsupported }
