//go:build !windows

package redirect

import (
	"errors"
	"syscall"
)

// inUse reports whether binding failed because another socket has the port.
func inUse(err error) bool { return errors.Is(err, syscall.EADDRINUSE) }
