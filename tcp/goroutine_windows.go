package tcp

import (
	"errors"
	"syscall"
	"unsafe"

	"golang.org/x/sys/windows"
)

// gone reports whether accepting failed because the client has reset the connection
// meanwhile.
func gone(err error) bool {
	return errors.Is(err, windows.WSAENOTCONN) || errors.Is(err, windows.WSAECONNRESET) ||
		errors.Is(err, windows.WSAECONNABORTED)
}

// dialControl makes a connect that is refused fail at once. By default the system asks
// three times, 500 ms apart, which would make every refusing backend a silent one
// (SIO_TCP_INITIAL_RTO, mstcpip.h). Without it, as under an older system, a refusal
// takes as long as a silence.
func dialControl(_, _ string, c syscall.RawConn) error {
	const (
		sioTCPInitialRTO    = 0x98000011
		unspecifiedRTT      = 0xffff // TCP_INITIAL_RTO_UNSPECIFIED_RTT
		noSYNRetransmission = 0xfe   // TCP_INITIAL_RTO_NO_SYN_RETRANSMISSIONS
	)
	params := struct {
		rtt uint16
		max uint8
	}{unspecifiedRTT, noSYNRetransmission}
	return c.Control(func(fd uintptr) {
		var n uint32
		_ = windows.WSAIoctl(windows.Handle(fd), sioTCPInitialRTO, (*byte)(unsafe.Pointer(&params)),
			uint32(unsafe.Sizeof(params)), nil, 0, &n, nil, 0)
	})
}
