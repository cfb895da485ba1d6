package packet

import (
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/mmsg"
	"github.com/sluice-lb/sluice/internal/socket"
	"github.com/sluice-lb/sluice/sctp/wire"
)

const (
	packetSize = 64 << 10 // holds any IP packet, reassembled
	quoteSize  = 2 << 10  // holds what ICMP quotes of a packet: at most 1,280 bytes
)

// received is a packet, until the next read.
type received struct {
	peer, local netip.Addr
	scope       uint32 // of a link-local peer: its interface
	tos         byte   // DSCP and ECN (RFC 2474, RFC 3168)
	hops        int    // that it had left (TTL, hop limit); 0: not known
	sctp        []byte // without the IP header
}

// left returns how many hops an INIT may go on, as from a router: one less than it had, so that a loop by way of
// another node ends, whatever that does. 0: not known.
func (d *received) left() int { return max(d.hops-1, 0) }

// parse returns the i-th packet. A raw socket of IPv4 returns the IP header too
// (raw(7)), one of IPv6 does not (RFC 3542 section 3). False: it is not whole.
func parse(in *mmsg.Reader, i int, ipv6 bool) (d received, ok bool) {
	b := in.Payload(i)
	if in.Truncated(i) {
		return d, false
	}
	if !ipv6 {
		if len(b) < 20 || len(b) < int(b[0]&15)*4 {
			return d, false
		}
		d.peer = netip.AddrFrom4([4]byte(b[12:16]))
		d.local = netip.AddrFrom4([4]byte(b[16:20]))
		d.tos, d.hops, d.sctp = b[1], max(int(b[8]), 1), b[int(b[0]&15)*4:]
		return d, true
	}
	d.peer, d.sctp = in.Name(i).AddrPort().Addr(), b
	if d.peer.IsLinkLocalUnicast() {
		d.scope = in.Name(i).Scope()
	}
	control := in.Control(i)
	d.tos = control.TrafficClass()
	d.hops, _ = control.Hops()
	d.local, ok = control.LocalAddr()
	return d, ok
}

// outgoing is a batch for sendmmsg(2).
type outgoing struct {
	n       int // packets in it
	header  [mmsg.Slots]unix.Mmsghdr
	vector  [mmsg.Slots]unix.Iovec
	name    [mmsg.Slots]socket.Name
	control [mmsg.Slots]mmsg.ControlBuffer
}

// add gives a packet its ports and puts it into the batch, from one of our addresses to a side's
// peer. It must stay as it is until it is sent. hops is how many it may go; 0: as many as the system allows.
func (sock *rawSocket) add(p []byte, to *side, tos byte, hops int) {
	wire.SetPorts(p, to.key.localPort, to.key.peerPort)
	out := &sock.out
	i := out.n
	out.n++
	out.vector[i].Base = unsafe.SliceData(p)
	out.vector[i].SetLen(len(p))
	out.name[i] = to.name
	control := &out.control[i]
	length := mmsg.PutLocalAddr(control[:], to.local(), to.key.scope)
	length += mmsg.PutTrafficClass(control[length:], tos, to.ipv6)
	if hops > 0 {
		length += mmsg.PutHops(control[length:], hops, to.ipv6)
	}
	h := &out.header[i].Hdr
	h.Iov = &out.vector[i]
	h.SetIovlen(1)
	mmsg.Address(h, &out.name[i], control, length)
	if out.n == mmsg.Slots {
		sock.flush()
	}
}

// flush sends the batch and empties it. It counts the packets that the kernel refuses.
func (sock *rawSocket) flush() {
	out, again := &sock.out, false
	for first := 0; first < out.n; {
		n, err := mmsg.Send(sock.fd, out.header[first:out.n])
		switch {
		case n > 0: // if some are left, the next call says why
			first, again = first+n, false
			continue
		case !again: // it may be an earlier packet's error, which ICMP has reported
			again = true
			continue
		case err == unix.EAGAIN || err == unix.ENOBUFS || err == unix.ENOMEM:
			sock.sh.count.Busy.Add(1)
		default:
			sock.sh.count.SendErrors.Add(1)
		}
		first, again = first+1, false
	}
	out.n = 0
}
