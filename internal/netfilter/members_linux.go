package netfilter

import (
	"cmp"
	"net/netip"
)

// Member is an entry of a set. The fields that the type of the set does not have
// are zero.
type Member struct {
	Addr     netip.Addr
	Protocol uint8 // its number in packets
	Port     uint16
	Net      netip.Prefix
	Mark     uint32 // what "SET --map-mark" gives packets; 0 means no mark
}

// Compare orders members in any way that is always the same.
func (e Member) Compare(n Member) int {
	return cmp.Or(e.Addr.Compare(n.Addr), cmp.Compare(e.Port, n.Port), cmp.Compare(e.Protocol, n.Protocol),
		e.Net.Addr().Compare(n.Net.Addr()), cmp.Compare(e.Net.Bits(), n.Net.Bits()), cmp.Compare(e.Mark, n.Mark))
}

// Halves splits a prefix of length 0, which a hash cannot hold (ipset(8)), in two.
func Halves(p netip.Prefix) []netip.Prefix {
	if p.Bits() != 0 {
		return []netip.Prefix{p}
	}
	high := p.Addr().AsSlice()
	high[0] = 0x80
	addr, _ := netip.AddrFromSlice(high)
	return []netip.Prefix{netip.PrefixFrom(p.Addr(), 1), netip.PrefixFrom(addr, 1)}
}
