package ipvs

import (
	"cmp"
	"net/netip"
	"slices"
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

// setTypes are those of sets that do not hold frontends only.
var setTypes = map[string]string{
	setNumbers: netfilter.BitmapPort, setInside: netfilter.HashNet, setAddresses: netfilter.HashNet,
	setAllowed: netfilter.HashIPPortNet, setSelf: netfilter.HashIPPortNet,
}

// set returns a set by its name without prefix. When trying, one set of each kind
// stands for all: to destroy one costs the kernel a wait for all its CPUs.
func (s shape) set(name string) netfilter.Set {
	set := netfilter.Set{Type: cmp.Or(setTypes[name], netfilter.HashIPPort), IPv6: s.ipv6, Marks: name == setNear}
	if s.prefix == probePrefix && !set.Marks {
		name = set.Type
	}
	family := "4-"
	if s.ipv6 {
		family = "6-"
	}
	set.Name = strings.TrimSuffix(s.prefix, "-") + family + name
	return set
}

// ourKeys returns the virtual servers that the members of SERVERS and NUMBERS name.
func ourKeys(servers, numbers []netfilter.Member) map[key]bool {
	out := make(map[key]bool, len(servers)+len(numbers))
	for _, m := range servers {
		if p := slices.Index(ipProtocols[:], m.Protocol); p > 0 {
			out[key{protocol: lb.Protocol(p), addr: netip.AddrPortFrom(m.Addr, m.Port)}] = true
		}
	}
	for _, m := range numbers {
		out[markOf(m.Port)] = true
	}
	return out
}
