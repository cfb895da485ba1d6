package redirect

import (
	"encoding/binary"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// originalDst asks for the IPv4 answer first: an IPv6 socket gives it too if its
// connection is IPv4, as it passes SOL_IP on (ipv6_getsockopt in the kernel), and
// says ENOENT if not.
func originalDst(fd int) (netip.AddrPort, error) {
	// struct sockaddr_in and sockaddr_in6 have a family, a port in network order,
	// then the address, in the latter after four bytes of flow label.
	var sa [unix.SizeofSockaddrInet6]byte
	err := getsockopt(fd, unix.SOL_IP, sa[:unix.SizeofSockaddrInet4])
	if err == 0 {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(sa[4:8])), binary.BigEndian.Uint16(sa[2:])), nil
	}
	if getsockopt(fd, unix.SOL_IPV6, sa[:]) == 0 {
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(sa[8:24])), binary.BigEndian.Uint16(sa[2:])), nil
	}
	return netip.AddrPort{}, err
}

// getsockopt fills b. The functions of x/sys that could carry this answer put it
// on the heap.
func getsockopt(fd, level int, b []byte) unix.Errno {
	n := uint32(len(b))
	_, _, errno := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), unix.SO_ORIGINAL_DST,
		uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&n)), 0)
	return errno
}
