package packet

import (
	"net/netip"

	"github.com/sluice-lb/sluice/internal/socket"
)

// sideKey names the way between an endpoint and us. IPv4 addresses are in the form
// of IPv6 ones. It has no pointers, so that a table of them is none of the garbage
// collector's work.
type sideKey struct {
	peer, local         [16]byte
	scope               uint32
	peerPort, localPort uint16
}

// side is one side of an association as we see it.
type side struct {
	a    *assoc // nil: there is no side
	key  sideKey
	name socket.Name // of the peer, for the kernel
	ipv6 bool
}

func newSide(a *assoc, peer, local netip.AddrPort, scope uint32) side {
	l := side{a: a, ipv6: peer.Addr().Is6(), key: sideKey{
		peer: peer.Addr().As16(), peerPort: peer.Port(), scope: scope,
		local: local.Addr().As16(), localPort: local.Port(),
	}}
	l.name.Set(netip.AddrPortFrom(peer.Addr(), 0)) // raw sockets of IPv6 take no port (rawv6_sendmsg)
	l.name.SetScope(scope)
	return l
}

// local returns our address on the side.
func (l *side) local() netip.Addr { return netip.AddrFrom16(l.key.local).Unmap() }

// peer returns the endpoint.
func (l *side) peer() netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16(l.key.peer).Unmap(), l.key.peerPort)
}
