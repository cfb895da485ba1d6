package socket

import (
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// SetBuffer sets a socket buffer to size bytes beyond the system's limit if that is allowed, and up to the
// limit if not: force is SO_RCVBUFFORCE or SO_SNDBUFFORCE, plain the option without FORCE (socket(7)).
func SetBuffer(fd, force, plain, size int) {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, size) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, plain, size)
	}
}

// Source returns the local address from which packets to peer leave. It connects fd, a datagram socket of
// peer's family that is used for nothing else; nothing is sent.
func Source(fd int, peer netip.AddrPort) (netip.Addr, error) {
	// The address of the last route would stay otherwise (connect(2), AF_UNSPEC).
	unspec := unix.RawSockaddrInet4{Family: unix.AF_UNSPEC}
	_ = call(unix.SYS_CONNECT, fd, unsafe.Pointer(&unspec), unsafe.Sizeof(unspec))
	if err := Connect(fd, peer); err != nil {
		return netip.Addr{}, err
	}
	local, err := Local(fd)
	return local.Addr(), err
}
