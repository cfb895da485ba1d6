package redirect

import (
	"slices"

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
	setAllowed     = "ALLOWED"       // restricted frontends and who may ask
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

// setOrder has all sets in the order in which members are added: those of each of the
// three kinds after those of the one before. Members are deleted the other way round. It
// is such that nobody is served at any moment between who is
// not served before or after, nor the other way round: whoever may ask is known
// before others are dropped, and they are before anything is steered.
var (
	setOrder = slices.Concat(setsOfWho, setsThatScreen, setsThatServe)

	setsOfWho      = []string{setInside, setAllowed}
	setsThatScreen = []string{
		setRestricted,
		setDrop, setDropNode + "TCP", setDropNode + "UDP",
		setOutside, setOutsideNode + "TCP", setOutsideNode + "UDP",
	}
	setsThatServe = []string{
		setUDPPorts,
		setAccept, setAcceptNode + "TCP", setAcceptNode + "UDP",
		setRefuse, setRefuseNode + "TCP", setRefuseNode + "UDP",
		setTCP,
	}
)

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

type member = netfilter.Member

// sets maps a set's name, without its prefix, to its members, sorted.
type sets map[string][]member

// without returns what each set has and its namesake of other has not.
func (s sets) without(other sets) sets {
	out := make(sets)
	for name, list := range s {
		if rest := netfilter.Minus(list, other[name]); len(rest) > 0 {
			out[name] = rest
		}
	}
	return out
}

// any reports whether any of the sets has members.
func (s sets) any(names []string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return len(s[name]) > 0 })
}

// members returns what is in each set for the plan, which is one of Plan.family.
func members(p Plan) sets {
	all := sets{setTCP: make([]member, 0, len(p.TCP))} // the long one
	add := func(name string, m member) { all[name] = append(all[name], m) }
	for _, addr := range p.TCP {
		add(setTCP, memberOf(lb.Frontend{Protocol: lb.TCP, Addr: addr}))
	}
	for _, f := range p.Ported {
		if f.Frontend.Protocol == lb.UDP {
			add(setUDPPorts, member{Port: f.Port})
		}
	}
	for _, l := range []struct {
		exact, node string
		list        []lb.Frontend
	}{
		{setAccept, setAcceptNode, p.Accept}, {setRefuse, setRefuseNode, p.Refuse},
		{setDrop, setDropNode, p.Drop}, {setOutside, setOutsideNode, p.DropOutside},
	} {
		for _, f := range l.list {
			switch {
			case !nodePort(f.Addr):
				add(l.exact, memberOf(f))
			case f.Protocol != lb.SCTP:
				add(l.node+f.Protocol.String(), member{Port: f.Addr.Port()})
			}
		}
	}
	for _, r := range p.Restricted {
		m := memberOf(r.Frontend)
		add(setRestricted, m)
		for _, m.Net = range r.Sources {
			add(setAllowed, m)
		}
	}
	for _, net := range p.Inside {
		for _, half := range netfilter.Halves(net) {
			add(setInside, member{Net: half})
		}
	}
	for name, list := range all {
		slices.SortFunc(list, member.Compare)
		all[name] = slices.Compact(list) // frontends may share a port
	}
	return all
}

func memberOf(f lb.Frontend) member {
	return member{Addr: f.Addr.Addr(), Protocol: ipProtocols[f.Protocol], Port: f.Addr.Port()}
}
