package nfnl

import (
	"encoding/binary"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Transact sends messages of which nf_tables does all or none, as one packet, which it wants, and awaits the answer to
// the one with the number last, which asks for it. Others are answered only if they are refused. Then refused is the
// number of the first of these, and the error is its errno.
func Transact(batch []byte, last uint32) (refused uint32, err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	const timeout = 60 // s; the kernel answers before sendto returns, if at all
	for _, err := range []error{
		unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: timeout}),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, len(batch)+1<<16),
		unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1), // answers without the request
		// If so many messages are refused that not all answers have room, the first are read all the same.
		unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_NO_ENOBUFS, 1),
	} {
		if err != nil {
			return 0, fmt.Errorf("prepare netlink socket: %w", err)
		}
	}
	if err := unix.Sendto(fd, batch, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, os.NewSyscallError("sendto", err)
	}
	return answers(fd, last)
}

// answers reads what the kernel says, up to the first error or the acknowledgement.
func answers(fd int, last uint32) (refused uint32, err error) {
	buffer := make([]byte, 1<<16)
	for {
		n, _, err := unix.Recvfrom(fd, buffer, 0)
		if err != nil {
			return 0, os.NewSyscallError("recvfrom", err)
		}
		msgs, err := syscall.ParseNetlinkMessage(buffer[:n])
		if err != nil {
			return 0, fmt.Errorf("read the kernel's answer: %w", err)
		}
		for _, m := range msgs {
			if m.Header.Type != unix.NLMSG_ERROR || len(m.Data) < 4 {
				continue
			}
			if errno := -int32(binary.NativeEndian.Uint32(m.Data)); errno != 0 {
				return m.Header.Seq, syscall.Errno(errno)
			}
			if m.Header.Seq == last {
				return 0, nil
			}
		}
	}
}
