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

// ofHost reports whether err is a shortage, or of file descriptors.
func ofHost(err error) bool {
	errno, ok := errors.AsType[unix.Errno](err)
	return ok && (shortage(errno) || errno == unix.EMFILE || errno == unix.ENFILE)
}

// shortage reports whether err, a bare errno, is about this host, not about a backend: a full
// socket, no ephemeral port (EAGAIN, connect(2)), no memory.
func shortage(err error) bool {
	return err == unix.EAGAIN || err == unix.ENOBUFS || err == unix.ENOMEM
}
