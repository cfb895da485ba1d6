package udp

import (
	"errors"
	"net"
	"unsafe"

	"golang.org/x/sys/windows"
)

// reportRefusals makes the socket report when a host refuses what it was sent, which the net
// package switches off (SIO_UDP_CONNRESET, mswsock.h). Without it a backend that refuses
// is one that does not answer.
func reportRefusals(conn *net.UDPConn) {
	const sioUDPConnReset = 0x9800000c
	raw, err := conn.SyscallConn()
	if err != nil {
		return // it is closed already
	}
	_ = raw.Control(func(fd uintptr) {
		on, n := uint32(1), uint32(0)
		_ = windows.WSAIoctl(windows.Handle(fd), sioUDPConnReset, (*byte)(unsafe.Pointer(&on)), 4, nil, 0, &n, nil, 0)
	})
}

// tooLong reports whether a datagram was larger than the path allows.
func tooLong(err error) bool { return errors.Is(err, windows.WSAEMSGSIZE) }

// noPort reports whether there is no ephemeral port, or no memory.
func noPort(err error) bool { return errors.Is(err, windows.WSAENOBUFS) }

// ofHost reports whether err is about this host, not about a backend.
func ofHost(err error) bool {
	return errors.Is(err, windows.WSAENOBUFS) || errors.Is(err, windows.WSAEMFILE) ||
		errors.Is(err, windows.WSAEADDRINUSE)
}
