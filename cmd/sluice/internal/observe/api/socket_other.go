//go:build !linux

package api

import (
	"errors"
	"net"
)

// ErrTaken means that another process serves its API at the path.
var ErrTaken = errors.New("another running process serves its API there")

// Listen makes the socket at path, which needs Linux.
func Listen(string, bool) (net.Listener, error) { return nil, errors.ErrUnsupported }
