package redirect

import (
	"cmp"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/lb"
)

// Names of sets, without their prefix. Node ports are apart, since a member of
// hash:ip,port has one address; a protocol follows the names of their sets, as a
// bitmap holds none.
const (
	setInside      = "INSIDE"        // where this node's pods are
	setAllowed     = "ALLOWED"       // restricted frontends and who may ask
	setRestricted  = "RESTRICTED"    // restricted frontends
	setDrop        = "DROP"          // frontends that never answer
	setDropNode    = "DROP-NODE-"    // node ports that never answer
	setOutside     = "OUTSIDE"       // frontends that do not answer other hosts
	setOutsideNode = "OUTSIDE-NODE-" // node ports that do not answer other hosts
	setUDPPorts    = "UDP-PORTS"     // UDP proxy ports
	setSCTPPorts   = "SCTP-PORTS"    // SCTP proxy ports
	setAccept      = "ACCEPT"        // frontends that the proxy listens on itself
	setAcceptNode  = "ACCEPT-NODE-"  // node ports that the proxy listens on itself
	setRefuse      = "REFUSE"        // frontends without endpoints
	setRefuseNode  = "REFUSE-NODE-"  // node ports without endpoints
	setTCP         = "TCP"           // TCP frontends
)

// Types of sets (ipset(8)).
const (
	hashIPPort    = "hash:ip,port"
	hashIPPortNet = "hash:ip,port,net"
	hashNet       = "hash:net"
	bitmapPort    = "bitmap:port"
)

// setOrder has all sets in the order in which members are added; they are deleted
// in the reverse. It is such that nobody is served at any moment between who is
// not served before or after, nor the other way round: whoever may ask is known
// before others are dropped, and they are before anything is steered.
var setOrder = []string{
	setInside, setAllowed, setRestricted,
	setDrop, setDropNode + "TCP", setDropNode + "UDP", setDropNode + "SCTP",
	setOutside, setOutsideNode + "TCP", setOutsideNode + "UDP", setOutsideNode + "SCTP",
	setUDPPorts, setSCTPPorts,
	setAccept, setAcceptNode + "TCP", setAcceptNode + "UDP", setAcceptNode + "SCTP",
	setRefuse, setRefuseNode + "TCP", setRefuseNode + "UDP", setRefuseNode + "SCTP",
	setTCP,
}

// setType returns the type of a set.
func setType(name string) string {
	switch name {
	case setTCP, setRefuse, setDrop, setOutside, setAccept, setRestricted:
		return hashIPPort
	case setAllowed:
		return hashIPPortNet
	case setInside:
		return hashNet
	}
	return bitmapPort
}

// ipProtocols are the numbers of protocols in packets.
var ipProtocols = [...]uint8{lb.TCP: unix.IPPROTO_TCP, lb.UDP: unix.IPPROTO_UDP, lb.SCTP: unix.IPPROTO_SCTP}

// member is an entry of a set. The fields that the type of the set does not have
// are zero.
type member struct {
	addr     netip.Addr
	protocol uint8 // its number in packets
	port     uint16
	net      netip.Prefix
}

// compare orders members in any way that is always the same.
func (e member) compare(n member) int {
	return cmp.Or(e.addr.Compare(n.addr), cmp.Compare(e.port, n.port), cmp.Compare(e.protocol, n.protocol),
		e.net.Addr().Compare(n.net.Addr()), cmp.Compare(e.net.Bits(), n.net.Bits()))
}

// sets maps a set's name, without its prefix, to its members, sorted.
type sets map[string][]member

// members returns what is in each set for the plan, which is one of Plan.family.
func members(p Plan) sets {
	all := sets{setTCP: make([]member, 0, len(p.TCP))} // the long one
	add := func(name string, m member) { all[name] = append(all[name], m) }
	for _, addr := range p.TCP {
		add(setTCP, memberOf(lb.Frontend{Protocol: lb.TCP, Addr: addr}))
	}
	for _, f := range p.Ported {
		ports := setUDPPorts
		if f.Frontend.Protocol == lb.SCTP {
			ports = setSCTPPorts
		}
		add(ports, member{port: f.Port})
	}
	for _, l := range []struct {
		exact, node string
		list        []lb.Frontend
	}{
		{setAccept, setAcceptNode, p.Accept}, {setRefuse, setRefuseNode, p.Refuse},
		{setDrop, setDropNode, p.Drop}, {setOutside, setOutsideNode, p.DropOutside},
	} {
		for _, f := range l.list {
			if nodePort(f.Addr) {
				add(l.node+f.Protocol.String(), member{port: f.Addr.Port()})
			} else {
				add(l.exact, memberOf(f))
			}
		}
	}
	for _, r := range p.Restricted {
		m := memberOf(r.Frontend)
		add(setRestricted, m)
		for _, m.net = range r.Sources {
			add(setAllowed, m)
		}
	}
	for _, net := range p.Inside {
		for _, half := range halves(net) {
			add(setInside, member{net: half})
		}
	}
	for name, list := range all {
		slices.SortFunc(list, member.compare)
		all[name] = slices.Compact(list) // frontends may share a port
	}
	return all
}

// minus returns the members that are in a and not in b.
func minus(a, b []member) []member {
	var out []member
	for _, m := range a {
		for len(b) > 0 && b[0].compare(m) < 0 {
			b = b[1:]
		}
		if len(b) == 0 || b[0] != m {
			out = append(out, m)
		}
	}
	return out
}

func memberOf(f lb.Frontend) member {
	return member{addr: f.Addr.Addr(), protocol: ipProtocols[f.Protocol], port: f.Addr.Port()}
}

// halves splits a prefix of length 0, which a hash cannot hold (ipset(8)), in two.
func halves(p netip.Prefix) []netip.Prefix {
	if p.Bits() != 0 {
		return []netip.Prefix{p}
	}
	high := p.Addr().AsSlice()
	high[0] = 0x80
	addr, _ := netip.AddrFromSlice(high)
	return []netip.Prefix{netip.PrefixFrom(p.Addr(), 1), netip.PrefixFrom(addr, 1)}
}
