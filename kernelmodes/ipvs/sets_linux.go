package ipvs

import (
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/lb"
)

// Names of sets, without their prefix.
const (
	setServers    = "SERVERS"    // our virtual servers at addresses, those that drain too
	setNumbers    = "NUMBERS"    // our virtual servers for marks, by the upper half of the mark
	setInside     = "INSIDE"     // where this node's pods are
	setAllowed    = "ALLOWED"    // restricted frontends with their clients
	setRestricted = "RESTRICTED" // restricted frontends
	setDrop       = "DROP"       // frontends that never answer, or where new flows are blocked at this moment
	setOutside    = "OUTSIDE"    // frontends that do not answer other hosts
	setRefuse     = "REFUSE"     // frontends without endpoints
	setSelf       = "SELF"       // backends here, each with itself as client
	setExternal   = "EXTERNAL"   // frontends whose clients are masqueraded
	setCluster    = "CLUSTER"    // cluster IPs: masqueraded but for pods
	setNear       = "NEAR"       // frontends and the marks that clients of this node get
	setFrontends  = "FRONTENDS"  // all of them
	setAddresses  = "ADDRESSES"  // of our interface
)

// setOrder has all sets but NEAR in the order in which members are added; they are deleted
// in the reverse. The clients that are admitted are known before anything is a frontend. What
// has a virtual server is known before it has one, so that a crash leaves none without an
// owner. Members of NEAR are there while there is a virtual server for their mark.
var setOrder = []string{
	setServers, setNumbers, setInside, setAllowed, setRestricted, setDrop, setOutside, setRefuse,
	setSelf, setExternal, setCluster, setFrontends, setAddresses,
}

// ipProtocols are the numbers of protocols in packets.
var ipProtocols = [...]uint8{lb.TCP: unix.IPPROTO_TCP, lb.UDP: unix.IPPROTO_UDP, lb.SCTP: unix.IPPROTO_SCTP}

func memberOf(f lb.Frontend) netfilter.Member {
	return netfilter.Member{Addr: f.Addr.Addr(), Protocol: ipProtocols[f.Protocol], Port: f.Addr.Port()}
}

// leadTo returns the UDP frontends of marks, from members of the set that gives them.
func leadTo(near []netfilter.Member) map[key][]netip.AddrPort {
	out := make(map[key][]netip.AddrPort)
	for _, m := range near {
		if m.Protocol == unix.IPPROTO_UDP {
			k := key{mark: m.Mark}
			out[k] = append(out[k], netip.AddrPortFrom(m.Addr, m.Port))
		}
	}
	return out
}

// shape is how rules and sets are written in one family.
type shape struct {
	ipv6   bool
	prefix string // of chains
}

func (s shape) chain(name string) string { return s.prefix + name }

// set returns a set by its name without prefix. When trying, one set of each kind
// stands for all: to destroy one costs the kernel a wait for all its CPUs.
func (s shape) set(name string) netfilter.Set {
	out := netfilter.Set{Type: netfilter.HashIPPort, IPv6: s.ipv6, Marks: name == setNear}
	first := setServers
	switch name {
	case setNumbers:
		out.Type, first = netfilter.BitmapPort, name
	case setInside, setAddresses:
		out.Type, first = netfilter.HashNet, setInside
	case setAllowed, setSelf:
		out.Type, first = netfilter.HashIPPortNet, setAllowed
	case setNear:
		first = name
	}
	if s.prefix == probePrefix {
		name = first
	}
	family := "4-"
	if s.ipv6 {
		family = "6-"
	}
	out.Name = strings.TrimSuffix(s.prefix, "-") + family + name
	return out
}
