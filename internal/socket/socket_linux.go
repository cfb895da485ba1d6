package socket

import (
	"encoding/binary"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Name is a socket address in the kernel's form (sockaddr_in and sockaddr_in6,
// ip(7), ipv6(7)). The zero Name is large enough for the kernel to write either.
type Name struct {
	raw unix.RawSockaddrInet6 // the larger of the two; sockaddr_in lies at its start
	len uint32
}

// Set makes n stand for addr, which must be valid. A zone is dropped.
func (n *Name) Set(addr netip.AddrPort) {
	ip := addr.Addr()
	if ip.Is4() {
		in := (*unix.RawSockaddrInet4)(unsafe.Pointer(&n.raw))
		*in = unix.RawSockaddrInet4{Family: unix.AF_INET, Addr: ip.As4()}
		putPort(&in.Port, addr.Port())
		n.len = unix.SizeofSockaddrInet4
		return
	}
	n.raw = unix.RawSockaddrInet6{Family: unix.AF_INET6, Addr: ip.As16()}
	putPort(&n.raw.Port, addr.Port())
	n.len = unix.SizeofSockaddrInet6
}

// SetScope gives an IPv6 address the interface that a link-local one is on
// (ipv6(7), sin6_scope_id). For IPv4 it does nothing.
func (n *Name) SetScope(scope uint32) {
	if n.raw.Family == unix.AF_INET6 {
		n.raw.Scope_id = scope
	}
}

// Scope returns the interface of a link-local IPv6 address, 0 for any other.
func (n *Name) Scope() uint32 {
	if n.raw.Family == unix.AF_INET6 {
		return n.raw.Scope_id
	}
	return 0
}

// AddrPort returns the address that n stands for, without a zone and with an
// IPv4-mapped address as IPv4; the zero AddrPort for any other family.
func (n *Name) AddrPort() netip.AddrPort {
	switch n.raw.Family {
	case unix.AF_INET:
		in := (*unix.RawSockaddrInet4)(unsafe.Pointer(&n.raw))
		return netip.AddrPortFrom(netip.AddrFrom4(in.Addr), port(&in.Port))
	case unix.AF_INET6:
		return netip.AddrPortFrom(netip.AddrFrom16(n.raw.Addr).Unmap(), port(&n.raw.Port))
	}
	return netip.AddrPort{}
}

// Pointer returns where the kernel's form is, for a msghdr; Size is its length.
func (n *Name) Pointer() *byte { return (*byte)(unsafe.Pointer(&n.raw)) }

// Size returns the length of the kernel's form: that of the address once it is
// set, otherwise all the room there is.
func (n *Name) Size() uint32 {
	if n.len == 0 {
		return unix.SizeofSockaddrInet6
	}
	return n.len
}

func port(p *uint16) uint16 { return binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(p))[:]) }

func putPort(p *uint16, v uint16) { binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(p))[:], v) }

// New creates a non-blocking, close-on-exec socket for addr's family: kind is
// unix.SOCK_STREAM or unix.SOCK_DGRAM, proto 0 or an IPPROTO constant. An IPv6
// socket never takes IPv4 traffic (IPV6_V6ONLY). The caller closes it.
func New(addr netip.Addr, kind, proto int) (int, error) {
	family := unix.AF_INET
	if addr.Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, proto)
	if err != nil || family == unix.AF_INET {
		return fd, err
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// Accept takes one connection, non-blocking and close-on-exec (accept4(2)). peer
// is the client's address. The caller closes fd.
func Accept(listener int) (fd int, peer netip.AddrPort, err error) {
	var n Name
	size := n.Size()
	r, _, errno := unix.RawSyscall6(unix.SYS_ACCEPT4, uintptr(listener), uintptr(unsafe.Pointer(&n.raw)),
		uintptr(unsafe.Pointer(&size)), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0, 0)
	if errno != 0 {
		return -1, netip.AddrPort{}, errno
	}
	return int(r), n.AddrPort(), nil
}

// Connect starts or continues connecting fd to addr (connect(2)). On a
// non-blocking stream socket the first call gives EINPROGRESS; further calls give
// EALREADY while it lasts, nil or EISCONN once it is connected, or why it failed.
func Connect(fd int, addr netip.AddrPort) error {
	var n Name
	n.Set(addr)
	return call(unix.SYS_CONNECT, fd, unsafe.Pointer(&n.raw), uintptr(n.len))
}

// Bind gives fd its local address (bind(2)).
func Bind(fd int, addr netip.AddrPort) error {
	var n Name
	n.Set(addr)
	return call(unix.SYS_BIND, fd, unsafe.Pointer(&n.raw), uintptr(n.len))
}

// From has a socket that is to connect do so from an address that need not be this host's, and from a port that
// connect(2) chooses (IP_TRANSPARENT, IP_BIND_ADDRESS_NO_PORT, ip(7)).
func From(fd int, addr netip.Addr) error {
	level, option := unix.IPPROTO_IP, unix.IP_TRANSPARENT
	if addr.Is6() {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_TRANSPARENT
	}
	if err := unix.SetsockoptInt(fd, level, option, 1); err != nil {
		return err
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1); err != nil {
		return err
	}
	return Bind(fd, netip.AddrPortFrom(addr, 0))
}

// BindShared binds one of several sockets that share a port. The first is bound alone and only then opened for sharing
// (SO_REUSEPORT, socket(7)): with the option set before, it would join another process of the same user that has the
// port, unnoticed. One that sets it before on purpose can still join us.
func BindShared(fd int, addr netip.AddrPort, first bool) error {
	if first {
		if err := Bind(fd, addr); err != nil {
			return err
		}
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil || first {
		return err
	}
	return Bind(fd, addr)
}

// Local returns fd's own address (getsockname(2)).
func Local(fd int) (netip.AddrPort, error) { return name(unix.SYS_GETSOCKNAME, fd) }

// Peer returns the address that fd is connected to (getpeername(2)).
func Peer(fd int) (netip.AddrPort, error) { return name(unix.SYS_GETPEERNAME, fd) }

func name(trap uintptr, fd int) (netip.AddrPort, error) {
	var n Name
	size := n.Size()
	_, _, errno := unix.RawSyscall(trap, uintptr(fd), uintptr(unsafe.Pointer(&n.raw)), uintptr(unsafe.Pointer(&size)))
	if errno != 0 {
		return netip.AddrPort{}, errno
	}
	return n.AddrPort(), nil
}

func call(trap uintptr, fd int, p unsafe.Pointer, arg uintptr) error {
	if _, _, errno := unix.RawSyscall(trap, uintptr(fd), uintptr(p), arg); errno != 0 {
		return errno
	}
	return nil
}

// ResetOnClose makes the close of a stream socket send a reset and drop what is
// still queued: SO_LINGER of zero seconds (socket(7), RFC 9293 section 3.10.5).
// It fails only on a descriptor that is no socket, where there is nothing to reset.
func ResetOnClose(fd int) {
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
}

// Reset resets the connection of a stream socket at once, also if other descriptors
// keep the socket open: connecting to AF_UNSPEC is TCP's ABORT (tcp_disconnect,
// RFC 9293 section 3.10.5).
func Reset(fd int) {
	unspec := unix.RawSockaddrInet4{Family: unix.AF_UNSPEC}
	_ = call(unix.SYS_CONNECT, fd, unsafe.Pointer(&unspec), unsafe.Sizeof(unspec)) // fails if there is nothing to reset
}

// Failed returns the error that has ended a connection, if any, and takes it from the socket (SO_ERROR, socket(7)).
func Failed(fd int) error {
	code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err == nil && code != 0 {
		err = unix.Errno(code)
	}
	return err
}

// TCP returns what TCP has measured of a connection (TCP_INFO, tcp(7)). x/sys puts it on the heap.
func TCP(fd int) (info unix.TCPInfo, err error) {
	size := uint32(unsafe.Sizeof(info))
	_, _, errno := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.IPPROTO_TCP, unix.TCP_INFO,
		uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		err = errno
	}
	return info, err
}

// Recv reads from a connected socket into p, which must not be empty (recv(2)).
// 0 means that the peer has ended its stream.
func Recv(fd int, p []byte) (int, error) { return transfer(unix.SYS_RECVFROM, fd, p, 0) }

// Send writes p to a connected socket and never raises SIGPIPE (send(2)).
func Send(fd int, p []byte) (int, error) { return transfer(unix.SYS_SENDTO, fd, p, unix.MSG_NOSIGNAL) }

// SendPart is Send for what is followed at once by more, or by the end of the stream:
// a segment that is not full waits for that (MSG_MORE, send(2)).
func SendPart(fd int, p []byte) (int, error) {
	return transfer(unix.SYS_SENDTO, fd, p, unix.MSG_NOSIGNAL|unix.MSG_MORE)
}

// EndStream ends the stream to fd's peer (shutdown(2), SHUT_WR).
func EndStream(fd int) error {
	if _, _, errno := unix.RawSyscall(unix.SYS_SHUTDOWN, uintptr(fd), unix.SHUT_WR, 0); errno != 0 {
		return errno
	}
	return nil
}

func transfer(trap uintptr, fd int, p []byte, flags uintptr) (int, error) {
	n, _, errno := unix.RawSyscall6(trap, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)),
		flags, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
