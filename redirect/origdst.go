package redirect

import "net/netip"

// OriginalDst returns the address and port that the client of an accepted TCP
// connection asked for, before netfilter sent the connection here. For a
// connection that was not steered it is the socket's own address.
//
// The connection may be IPv4, IPv6, or IPv4 on a dual-stack IPv6 socket, whose
// answer is an IPv4 address. It costs one system call for IPv4 and two for IPv6,
// and does not allocate. The descriptor stays the caller's. The error is ENOENT
// if conntrack does not know the connection: its entry has been deleted, or
// nothing tracks connections here.
//
// It reads SO_ORIGINAL_DST (linux/netfilter_ipv4.h) or IP6T_SO_ORIGINAL_DST
// (linux/netfilter_ipv6/ip6_tables.h). On other systems than Linux it returns
// errors.ErrUnsupported.
func OriginalDst(fd int) (netip.AddrPort, error) { return originalDst(fd) }
