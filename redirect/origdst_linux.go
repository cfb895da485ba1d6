package redirect

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/netfilter"
)

// originalDst asks for the IPv4 answer first: an IPv6 socket gives it too if its
// connection is IPv4, as it passes SOL_IP on (ipv6_getsockopt in the kernel), and
// says ENOENT if not.
func originalDst(fd int) (netip.AddrPort, error) {
	// struct sockaddr_in and sockaddr_in6 have a family, a port in network order,
	// then the address, in the latter after four bytes of flow label.
	var sa [unix.SizeofSockaddrInet6]byte
	err := netfilter.Getsockopt(fd, unix.SOL_IP, unix.SO_ORIGINAL_DST, sa[:unix.SizeofSockaddrInet4])
	if err == nil {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(sa[4:8])), binary.BigEndian.Uint16(sa[2:])), nil
	}
	if netfilter.Getsockopt(fd, unix.SOL_IPV6, unix.SO_ORIGINAL_DST, sa[:]) == nil {
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(sa[8:24])), binary.BigEndian.Uint16(sa[2:])), nil
	}
	return netip.AddrPort{}, err
}
