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

// ofHost reports whether err is about this host, not about a backend: no ephemeral
// port (EAGAIN, connect(2)), no memory, no descriptor.
func ofHost(err error) bool {
	return errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.ENOMEM) ||
		errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE)
}
