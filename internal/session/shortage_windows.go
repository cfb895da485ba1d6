package session

import "golang.org/x/sys/windows"

var shortages = []windows.Errno{windows.WSAEMFILE, windows.WSAENOBUFS, windows.WSAEADDRNOTAVAIL, windows.WSAEADDRINUSE,
	windows.ERROR_NOT_ENOUGH_MEMORY}
