package testbed

import (
	"errors"
	"net"

	"golang.org/x/sys/unix"
)

// receivePacketInfo makes a socket say to which address each datagram was sent (ip(7), ipv6(7)).
func receivePacketInfo(c *net.UDPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var v4, v6 error
	err = raw.Control(func(fd uintptr) {
		v4 = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_PKTINFO, 1)
		v6 = unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_RECVPKTINFO, 1)
	})
	if v4 != nil && v6 != nil { // a socket may be of one family
		err = errors.Join(err, v4, v6)
	}
	return err
}
