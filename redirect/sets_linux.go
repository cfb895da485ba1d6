package redirect

import (
	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/lb"
)

// Names of sets, without their prefix. Node ports are apart, since a member of
// hash:ip,port has one address; a protocol, TCP or UDP, follows the names of their
// sets, as a bitmap holds none. It matches no packet of another protocol
// (ip_set_get_ip_port), so that SCTP's node ports and proxy ports have rules.
const (
	setInside      = "INSIDE"        // where this node's pods are
	setAllowed     = "ALLOWED"       // restricted frontends and their clients
	setRestricted  = "RESTRICTED"    // restricted frontends
	setDrop        = "DROP"          // frontends that never answer
	setDropNode    = "DROP-NODE-"    // node ports that never answer
	setOutside     = "OUTSIDE"       // frontends that do not answer other hosts
	setOutsideNode = "OUTSIDE-NODE-" // node ports that do not answer other hosts
	setUDPPorts    = "UDP-PORTS"     // UDP proxy ports
	setAccept      = "ACCEPT"        // frontends that the proxy listens on itself
	setAcceptNode  = "ACCEPT-NODE-"  // node ports that the proxy listens on itself
	setRefuse      = "REFUSE"        // frontends without endpoints
	setRefuseNode  = "REFUSE-NODE-"  // node ports without endpoints
	setTCP         = "TCP"           // TCP frontends
)

// setGroups has all sets in the order in which they grow: the sets of each of the three
// groups after those of the one before. They shrink the other way round. So no client that
// is served neither before nor after a change is served in between, nor the other way
// round: those that may ask are known before others are dropped, and these before anything
// is redirected.
var setGroups = [][]string{
	{setInside, setAllowed},
	{
		setRestricted,
		setDrop, setDropNode + "TCP", setDropNode + "UDP",
		setOutside, setOutsideNode + "TCP", setOutsideNode + "UDP",
	},
	{
		setUDPPorts,
		setAccept, setAcceptNode + "TCP", setAcceptNode + "UDP",
		setRefuse, setRefuseNode + "TCP", setRefuseNode + "UDP",
		setTCP,
	},
}

// setType returns the type of a set.
func setType(name string) string {
	switch name {
	case setTCP, setRefuse, setDrop, setOutside, setAccept, setRestricted:
		return netfilter.HashIPPort
	case setAllowed:
		return netfilter.HashIPPortNet
	case setInside:
		return netfilter.HashNet
	}
	return netfilter.BitmapPort
}

// ipProtocols are the numbers of protocols in packets.
var ipProtocols = [...]uint8{lb.TCP: unix.IPPROTO_TCP, lb.UDP: unix.IPPROTO_UDP, lb.SCTP: unix.IPPROTO_SCTP}

// kernelSet returns the set of a name without its prefix.
func (s shape) kernelSet(name string) netfilter.Set {
	return netfilter.Set{Name: s.set(name), Type: setType(name), IPv6: s.ipv6}
}

// layout says what in netfilter is ours.
func (s shape) layout(counters *netfilter.Counters) netfilter.Layout {
	l := netfilter.Layout{IPv6: s.ipv6, Prefix: chainPrefix, Own: own, Counters: counters}
	for _, t := range tables {
		l.Tables = append(l.Tables, netfilter.Table{Name: t.name})
	}
	for i, names := range setGroups {
		g := netfilter.SetGroup{Late: i == 0} // SLUICE-DROP matches ALLOWED last
		for _, name := range names {
			g.Sets = append(g.Sets, s.kernelSet(name))
		}
		if s.sets {
			l.Sets = append(l.Sets, g)
		}
	}
	return l
}

// members calls f with each member of a set that an entry needs, and the set's name
// without its prefix.
func (e Entry) members(f func(set string, m netfilter.Member)) {
	exact := memberOf(e.Frontend)
	either := func(set, node string) {
		if !nodePort(e.Frontend.Addr) {
			f(set, exact)
		} else if e.Frontend.Protocol != lb.SCTP {
			f(node+e.Frontend.Protocol.String(), netfilter.Member{Port: e.Frontend.Addr.Port()})
		}
	}
	switch e.Action {
	case Redirect:
		if e.Frontend.Protocol == lb.TCP {
			f(setTCP, exact)
		} else if e.Frontend.Protocol == lb.UDP {
			f(setUDPPorts, netfilter.Member{Port: e.Port})
		}
	case Accept:
		either(setAccept, setAcceptNode)
	case Refuse:
		either(setRefuse, setRefuseNode)
	case Drop:
		either(setDrop, setDropNode)
	}
	if e.DropOutside {
		either(setOutside, setOutsideNode)
	}
	if e.Sources != nil {
		f(setRestricted, exact)
	}
	for _, source := range e.Sources {
		m := exact
		m.Net = source
		f(setAllowed, m)
	}
}

func memberOf(f lb.Frontend) netfilter.Member {
	return netfilter.Member{Addr: f.Addr.Addr(), Protocol: ipProtocols[f.Protocol], Port: f.Addr.Port()}
}
