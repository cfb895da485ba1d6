package packet

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/mmsg"
	"github.com/sluice-lb/sluice/internal/socket"
)

// rounds is how many batches one event may take before the events of the loop's other sockets.
const rounds = 4

// rawSocket is a shard's share of the packets of one address family.
type rawSocket struct {
	sh     *shard
	ipv6   bool
	fd     int // raw socket
	router int // socket to ask for routes
	in     *mmsg.Reader
	out    outgoing
	errors *mmsg.Reader // what ICMP has reported
}

// newRawSocket starts receiving by a raw socket. It closes both sockets if it fails.
func (sh *shard) newRawSocket(ipv6 bool, fd, router int) (*rawSocket, error) {
	sock := &rawSocket{sh: sh, ipv6: ipv6, fd: fd, router: router,
		in: mmsg.NewReader(packetSize), errors: mmsg.NewReader(quoteSize)}
	err := sh.loop.AddRead(sock.fd, sock)
	if ipv6 { // an adopted one may be of a version that did not ask for it
		err = errors.Join(err, unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, 1))
	}
	if err != nil {
		sock.close()
		return nil, err
	}
	sh.sockets[ipv6] = sock
	return sock, nil
}

func (sock *rawSocket) close() {
	_ = sock.sh.loop.Close(sock.fd)
	_ = unix.Close(sock.router)
}

// HandleEvent passes on what has arrived.
func (sock *rawSocket) HandleEvent(ev eventloop.Event) {
	if ev&eventloop.Failed != 0 {
		sock.readErrors()
	}
	for range rounds {
		n, err := sock.in.Read(sock.fd, 0)
		switch {
		case err == unix.EAGAIN:
			return
		case err != nil: // of an earlier packet, reported by ICMP
			sock.readErrors()
			continue
		}
		now := eventloop.Now()
		for i := range n {
			if d, ok := parse(sock.in, i, sock.ipv6); ok {
				sock.handle(&d, now)
			} else {
				sock.sh.count.Malformed.Add(1)
			}
		}
		sock.flush()
		if n < mmsg.Slots {
			return
		}
	}
	_ = sock.sh.loop.RearmRead(sock.fd) // fails for a descriptor that is not watched only
}

// readErrors looks for backends that ICMP reports as unreachable. For an association that is
// established it means nothing (RFC 9260 appendix B): a path may come back.
func (sock *rawSocket) readErrors() {
	for {
		n, err := sock.errors.Read(sock.fd, unix.MSG_ERRQUEUE)
		if err != nil || n == 0 {
			return
		}
		for i := range n {
			// A packet that was too long for the path says nothing of its destination: the kernel
			// sends the next one in fragments.
			errno, icmp := sock.errors.Control(i).QueuedError()
			if quote := sock.errors.Payload(i); len(quote) >= 4 && icmp && errno != unix.EMSGSIZE {
				sock.failed(sock.errors.Name(i).AddrPort().Addr(), quote)
			}
		}
	}
}

// failed moves on from a backend that was dialled and cannot be reached.
func (sock *rawSocket) failed(peer netip.Addr, quote []byte) {
	sh := sock.sh
	source, dest := uint16(quote[0])<<8|uint16(quote[1]), uint16(quote[2])<<8|uint16(quote[3])
	to := netip.AddrPortFrom(peer, dest)
	local, err := socket.Source(sock.router, to)
	if err != nil {
		return
	}
	key := newSide(nil, to, netip.AddrPortFrom(local, source), 0).key
	if l, ok := sh.sides[key]; ok && l == &l.a.backend && l.a.phase == opening {
		sh.count.DialRefused.Add(1)
		l.a.dialFailed(errRefused)
		l.a.dialNext()
	}
}

// openRaw makes a raw socket for SCTP of one family that receives what comes to
// any address of the host, the index-th of n shares of it. While it is open the
// kernel does not answer with ICMP that the protocol is unreachable
// (ip_protocol_deliver_rcu and ip6_protocol_deliver_rcu). The caller closes it.
func openRaw(ipv6 bool, index, n int) (fd int, err error) {
	family, level, options := unix.AF_INET, unix.IPPROTO_IP, []int{unix.IP_RECVERR}
	if ipv6 {
		family, level = unix.AF_INET6, unix.IPPROTO_IPV6 // never takes IPv4 packets, and refuses IPV6_V6ONLY
		options = []int{unix.IPV6_RECVPKTINFO, unix.IPV6_RECVTCLASS, unix.IPV6_RECVERR}
	}
	fd, err = unix.Socket(family, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if err != nil {
		return -1, fmt.Errorf("open raw socket for SCTP: %w", err)
	}
	if n > 1 {
		err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, share(ipv6, index, n))
	}
	for _, option := range options {
		err = errors.Join(err, unix.SetsockoptInt(fd, level, option, 1))
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("set up raw socket for SCTP: %w", err)
	}
	socket.SetReceiveBuffer(fd, socketBuffer)
	socket.SetSendBuffer(fd, socketBuffer)
	return fd, nil
}
