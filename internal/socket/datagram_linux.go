package socket

import (
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// SetReceiveBuffer sets how many bytes the kernel queues for fd's reader, its own overhead included:
// beyond the system's limit if that is allowed, and up to the limit if not (socket(7)).
func SetReceiveBuffer(fd, size int) { setBuffer(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, size) }

// SetSendBuffer is SetReceiveBuffer for what fd sends.
func SetSendBuffer(fd, size int) { setBuffer(fd, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, size) }

func setBuffer(fd, force, plain, size int) {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, size) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, plain, size)
	}
}

// Source returns the local address from which packets to peer leave. It connects fd, a datagram socket of
// peer's family that is used for nothing else; nothing is sent.
func Source(fd int, peer netip.AddrPort) (netip.Addr, error) {
	Reset(fd) // the address of the last route would stay otherwise
	if err := Connect(fd, peer); err != nil {
		return netip.Addr{}, err
	}
	local, err := Local(fd)
	return local.Addr(), err
}

// Disconnect takes from a connected datagram socket its peer, its local address and port,
// and the errors that wait; received datagrams stay. A Connect then makes it as
// good as new, for half the cost and without a second descriptor.
func Disconnect(fd int) {
	Reset(fd)
	var b byte
	for { // nothing is sent by the socket any more, so that the error queue only gets shorter
		_, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&b)), 1,
			unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT, 0, 0)
		if errno != 0 {
			break
		}
	}
	_, _ = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR) // reading clears it
}

// SelfConnected reports whether fd, connected to peer, is its own peer: the kernel may
// give a connecting socket the very port that it connects to, if no process listens there.
func SelfConnected(fd int, peer netip.AddrPort) bool {
	local, err := Local(fd)
	return err == nil && local == peer
}
