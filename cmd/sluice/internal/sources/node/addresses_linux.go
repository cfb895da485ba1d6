package node

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// addressNotice is a socket to which the kernel writes when an address of the node comes
// or goes (rtnetlink(7)). That there is something to read is all that is asked of it.
type addressNotice int

// noticeBuffer is the bytes of unread messages that are kept: little, since a loss is an
// error of recv(2), which says as much. The kernel makes it at least 2 KiB.
const noticeBuffer = 1

func newAddressNotice() (*addressNotice, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, noticeBuffer),
		unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK,
			Groups: unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR}),
	)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("watch addresses by netlink: %w", err), unix.Close(fd))
	}
	n := addressNotice(fd)
	return &n, nil
}

// changed reports whether an address may have come or gone since it was asked last.
func (n *addressNotice) changed() (changed bool) {
	var b [1]byte // the rest of a message is thrown away
	for {
		_, _, err := unix.Recvfrom(int(*n), b[:], unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return changed
		case err != nil && !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.EINTR):
			return true // nothing is known
		}
		changed = true
	}
}

func (n *addressNotice) close() error { return unix.Close(int(*n)) }
