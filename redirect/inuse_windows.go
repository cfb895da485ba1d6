package redirect

import (
	"errors"

	"golang.org/x/sys/windows"
)

// inUse reports whether binding failed because another socket has the port.
// WSAEACCES is what Windows says when that socket has asked for exclusive use, or
// when the port is in an excluded range.
func inUse(err error) bool {
	return errors.Is(err, windows.WSAEADDRINUSE) || errors.Is(err, windows.WSAEACCES)
}
