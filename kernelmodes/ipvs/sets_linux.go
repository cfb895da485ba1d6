package ipvs

import (
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/lb"
)

type netfilterMember = netfilter.Member

// Names of sets, without their prefix.
const (
	setServers    = "SERVERS"    // our virtual servers at addresses, those that drain too
	setNumbers    = "NUMBERS"    // our virtual servers for marks, by the upper half of the mark
	setInside     = "INSIDE"     // where this node's pods are
	setAllowed    = "ALLOWED"    // restricted frontends and who may ask
	setRestricted = "RESTRICTED" // restricted frontends
	setDrop       = "DROP"       // frontends that never answer, or not at this moment
	setOutside    = "OUTSIDE"    // frontends that do not answer other hosts
	setRefuse     = "REFUSE"     // frontends without endpoints
	setSelf       = "SELF"       // backends here, each with itself as client
	setExternal   = "EXTERNAL"   // frontends whose clients are masqueraded
	setCluster    = "CLUSTER"    // cluster IPs: masqueraded but for pods
	setNear       = "NEAR"       // frontends and the marks that clients of this node get
	setFrontends  = "FRONTENDS"  // all of them
	setAddresses  = "ADDRESSES"  // of our interface
)

// setOrder has all sets in the order in which members are added; they are deleted in
// the reverse. Whoever may ask is known before anything is a frontend. What has a
// virtual server is known before it has one, so that after a crash none is left that
// nobody knows the owner of.
var setOrder = []string{
	setServers, setNumbers, setInside, setAllowed, setRestricted, setDrop, setOutside, setRefuse,
	setSelf, setExternal, setCluster, setFrontends, setAddresses, setNear,
}

// sets maps a set's name, without its prefix, to its members.
type sets map[string][]netfilterMember

func (s sets) add(name string, m netfilterMember) { s[name] = append(s[name], m) }

func (s sets) addNet(name string, p netip.Prefix) {
	for _, half := range netfilter.Halves(p.Masked()) {
		s.add(name, netfilterMember{Net: half})
	}
}

func (s sets) sort() {
	for name, list := range s {
		slices.SortFunc(list, netfilterMember.Compare)
		s[name] = slices.Compact(list)
	}
}

// ipProtocols are the numbers of protocols in packets.
var ipProtocols = [...]uint8{lb.TCP: unix.IPPROTO_TCP, lb.UDP: unix.IPPROTO_UDP, lb.SCTP: unix.IPPROTO_SCTP}

func memberOf(f lb.Frontend) netfilterMember {
	return netfilterMember{Addr: f.Addr.Addr(), Protocol: ipProtocols[f.Protocol], Port: f.Addr.Port()}
}

// obsolete returns the members of was that are to be deleted: those that want has only
// with another mark have been overwritten by adding.
func obsolete(was, want []netfilterMember) []netfilterMember {
	plain := func(list []netfilterMember) []netfilterMember {
		if !slices.ContainsFunc(list, func(m netfilterMember) bool { return m.Mark != 0 }) {
			return list
		}
		out := slices.Clone(list)
		for i := range out {
			out[i].Mark = 0
		}
		return out
	}
	return netfilter.Minus(plain(was), plain(want))
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
