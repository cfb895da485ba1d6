package nfnl

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Transact sends messages of which nf_tables does all or none, as one packet, which it wants, and awaits the answer to
// the one with the number last, which asks for it. Others are answered only if they are refused. Then refused is the
// number of the first of these, and the error is its errno.
func Transact(batch []byte, last uint32) (refused uint32, err error) {
	fd, err := open(len(batch))
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	var first error
	err = exchange(fd, batch, last, func(number uint32, why error) (goOn bool) {
		refused, first = number, why
		return false
	})
	return refused, cmp.Or(err, first)
}

// atOnce is how many messages RequestAll sends at once: the answers to all have room in a socket.
const atOnce = 64

// RequestAll sends requests that differ in their attributes, one list for each, on one socket in the network namespace
// of the calling thread, many at a time. None keeps another from being done: refused is called with the errno of each
// that the kernel refuses. done is how many it has been asked, all of them unless the socket fails.
func RequestAll(subsystem, command int, family uint8, list [][]byte, refused func(error)) (done int, err error) {
	if len(list) == 0 {
		return 0, nil
	}
	fd, err := open(0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	var batch []byte
	for some := range slices.Chunk(list, atOnce) {
		batch = batch[:0]
		for i, attrs := range some {
			flags := uint16(unix.NLM_F_REQUEST)
			if i == len(some)-1 {
				flags |= unix.NLM_F_ACK // others are answered only if they are refused
			}
			batch = appendRequest(batch, uint16(subsystem<<8|command), flags, uint32(done+i+1), family, attrs)
		}
		err := exchange(fd, batch, uint32(done+len(some)), func(_ uint32, why error) (goOn bool) {
			refused(why)
			return true
		})
		if err != nil {
			return done, err
		}
		done += len(some)
	}
	return done, nil
}

// appendRequest appends a message (struct nlmsghdr, struct nfgenmsg, attributes).
func appendRequest(b []byte, kind, flags uint16, number uint32, family uint8, attrs []byte) []byte {
	b = binary.NativeEndian.AppendUint32(b, uint32(unix.SizeofNlMsghdr+nl.SizeofNfgenmsg+len(attrs)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = binary.NativeEndian.AppendUint16(b, flags)
	b = binary.NativeEndian.AppendUint32(b, number)
	b = append(b, 0, 0, 0, 0, family, nl.NFNETLINK_V0, 0, 0)
	b = append(b, attrs...)
	return append(b, make([]byte, -len(attrs)&(unix.NLMSG_ALIGNTO-1))...)
}

// open returns a socket that sends messages of some bytes, if that is more than usual.
func open(room int) (fd int, err error) {
	if fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER); err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	const timeout = 60 // s; the kernel answers before sendto returns, if at all
	for _, err := range []error{
		unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: timeout}),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, room+1<<16),
		unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1), // answers without the request
		// If so many messages are refused that not all answers have room, the first are read all the same.
		unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_NO_ENOBUFS, 1),
	} {
		if err != nil {
			unix.Close(fd)
			return 0, fmt.Errorf("prepare netlink socket: %w", err)
		}
	}
	return fd, nil
}

// exchange sends messages and reads what the kernel says, up to its answer to the one with the number last, and calls
// refused for each that it refuses, unless that ends the exchange.
func exchange(fd int, batch []byte, last uint32, refused func(number uint32, why error) (goOn bool)) error {
	if err := unix.Sendto(fd, batch, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("sendto", err)
	}
	buffer := make([]byte, 1<<16)
	for {
		n, _, err := unix.Recvfrom(fd, buffer, 0)
		if err != nil {
			return os.NewSyscallError("recvfrom", err)
		}
		msgs, err := syscall.ParseNetlinkMessage(buffer[:n])
		if err != nil {
			return fmt.Errorf("read the kernel's answer: %w", err)
		}
		for _, m := range msgs {
			if m.Header.Type != unix.NLMSG_ERROR || len(m.Data) < 4 {
				continue
			}
			errno := -int32(binary.NativeEndian.Uint32(m.Data))
			if errno != 0 && !refused(m.Header.Seq, syscall.Errno(errno)) || m.Header.Seq == last {
				return nil
			}
		}
	}
}
