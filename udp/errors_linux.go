package udp

import (
	"errors"
	"net"

	"golang.org/x/sys/unix"
)

// reportRefusals does nothing: the kernel reports refusals to a connected socket (udp(7)).
func reportRefusals(*net.UDPConn) {}

// tooLong reports whether a datagram was larger than the path allows.
func tooLong(err error) bool { return errors.Is(err, unix.EMSGSIZE) }

// noPort reports whether connect(2) has found no ephemeral port.
func noPort(err error) bool { return errors.Is(err, unix.EAGAIN) }

// ofHost reports whether err is about this host, not about a backend: a full socket, no
// ephemeral port (EAGAIN, connect(2)), no memory, no file descriptor.
func ofHost(err error) bool {
	switch errno, _ := errors.AsType[unix.Errno](err); errno {
	case unix.EAGAIN, unix.ENOBUFS, unix.ENOMEM, unix.EMFILE, unix.ENFILE:
		return true
	}
	return false
}
