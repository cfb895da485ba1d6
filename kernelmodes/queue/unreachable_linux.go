package queue

import (
	"encoding/binary"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/netfilter/nfqueue"
)

// A client of SCTP beyond a limit hears it by ICMP: that the protocol is unreachable (RFC 792), or that the next header
// is not known (RFC 4443, 3.4), each with the tag of its INIT, end an association that is being set up (RFC 9260, 10).
// An ABORT would have to come from the address that was asked, and its entry in conntrack would be in the way of the
// client's next INIT. Rules send the first one; there is none for the second.

// manyUnreachable is how many clients hear it in a second at most, as the kernel bounds its own messages
// (net.ipv4.icmp_msgs_per_sec).
const manyUnreachable = 1000

// unreachable sends such messages of IPv6.
type unreachable struct {
	fd     int
	can    bool
	second atomic.Int64
	sent   atomic.Int64 // in that
}

// open opens it in the network namespace of the calling thread.
func (u *unreachable) open() error {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_ICMPV6)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	u.fd, u.can = fd, true
	block := new(unix.ICMPv6Filter) // it receives nothing
	for i := range block.Data {
		block.Data[i] = 1<<32 - 1
	}
	return unix.SetsockoptICMPv6Filter(fd, unix.IPPROTO_ICMPV6, unix.ICMPV6_FILTER, block)
}

func (u *unreachable) close() {
	if u.can {
		_ = unix.Close(u.fd)
		u.can = false
	}
}

// tell tells the client of a flow, whose INIT had a tag. It does not wait.
func (u *unreachable) tell(client, asked netip.AddrPort, tag uint32, now int64) {
	if !u.can || !u.allows(now) {
		return
	}
	const (
		problem, unknown = 4, 1 // type and code
		icmp, ip, sctp   = 8, 40, 12
		chunk            = 8 // of an INIT, up to its tag
		whole            = 20
		nextHeader       = 6
	)
	var b [icmp + ip + sctp + chunk]byte
	b[0], b[1], b[icmp-1] = problem, unknown, nextHeader // the kernel adds the checksum
	h := b[icmp:]
	h[0], h[nextHeader], h[nextHeader+1] = 6<<4, unix.IPPROTO_SCTP, 64
	binary.BigEndian.PutUint16(h[4:], sctp+whole)
	from, to := client.Addr().As16(), asked.Addr().As16()
	copy(h[8:], from[:])
	copy(h[24:], to[:])
	h = h[ip:]
	binary.BigEndian.PutUint16(h, client.Port())
	binary.BigEndian.PutUint16(h[2:], asked.Port())
	h = h[sctp:]
	h[0] = 1 // INIT
	binary.BigEndian.PutUint16(h[2:], whole)
	binary.BigEndian.PutUint32(h[4:], tag)
	_ = unix.Sendto(u.fd, b[:], 0, &unix.SockaddrInet6{Addr: from}) // else the client sends again
}

// allows reports whether one more is allowed in this second.
func (u *unreachable) allows(now int64) bool {
	second := now / int64(time.Second)
	if was := u.second.Load(); was != second && u.second.CompareAndSwap(was, second) {
		u.sent.Store(0)
	}
	return u.sent.Add(1) <= manyUnreachable
}

// refusal returns what becomes of a client beyond a limit, whose packet has a mark, and of SCTP a tag: what may wait
// for an endpoint with room, and has no place, is not answered, and asks again. Others hear it at once.
func (s *Server) refusal(k *flowKey, tag uint32, why error, mark uint32) (nfqueue.Action, uint32) {
	client, asked := k.ends()
	switch {
	case full(why) || k.isUDP():
		return nfqueue.Drop, mark
	case asked.Addr().Is6() && !k.isTCP():
		s.unreachable.tell(client, asked, tag, s.Now())
		return nfqueue.Drop, mark
	}
	return nfqueue.Accept, mark | s.Ask.Mask
}
