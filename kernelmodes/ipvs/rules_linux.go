package ipvs

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/kernelmodes"
	"github.com/sluice-lb/sluice/lb"
)

// Prefixes of chains.
const (
	chainPrefix = "SLUICE-IPVS-"
	probePrefix = "SLUICE-IPVST-" // tried at start and removed at once
)

// Names of chains, without their prefix.
const (
	chainIn      = "IN"      // mangle: new flows from elsewhere
	chainOut     = "OUT"     // mangle: new flows of the node itself
	chainAdmit   = "ADMIT"   // mangle: drops clients that are not admitted
	chainMark    = "MARK"    // mangle: marks what is masqueraded
	chainNear    = "NEAR"    // mangle: clients on this node
	chainInput   = "INPUT"   // filter
	chainRefuse  = "REFUSE"  // filter
	chainStale   = "STALE"   // filter: what sockets say too late
	chainForward = "FORWARD" // filter
	chainPost    = "POST"    // nat: masquerades
)

// jumps lead from chains of the kernel to ours. They are put before all rules that are
// not of Sluice.
func (s shape) jumps() []netfilter.Jump {
	list := []netfilter.Jump{
		{Table: "mangle", From: "PREROUTING", To: chainIn, NewOnly: true, Comment: "sluice ipvs: new flows"},
		{Table: "mangle", From: "OUTPUT", To: chainOut, NewOnly: true, Comment: "sluice ipvs: new flows"},
		{Table: "nat", From: "POSTROUTING", To: chainPost, Comment: "sluice ipvs: masquerade"},
		{Table: "filter", From: "INPUT", To: chainInput, NewOnly: true, Comment: "sluice ipvs: let in"},
		{Table: "filter", From: "OUTPUT", To: chainRefuse, NewOnly: true, Comment: "sluice ipvs: without endpoints"},
		{Table: "filter", From: "OUTPUT", To: chainStale, NewOnly: true, Comment: "sluice ipvs: what has moved"},
		{Table: "filter", From: "FORWARD", To: chainForward, Comment: "sluice ipvs: let answers through"},
	}
	for i := range list {
		list[i].To = s.chain(list[i].To)
	}
	return list
}

// numberShift is where a Service's number is in marks.
const numberShift = 16

// masquerade defines whose source is to become this node.
type masquerade struct {
	mark        uint32 // bit
	all         bool
	randomFully bool
	interfaces  []string // matches for those that pods are known by
	pods        []string // matches for all traffic of pods
}

// layout is what of a family is ours.
func (s shape) layout() netfilter.Layout {
	var group netfilter.SetGroup
	for _, name := range setOrder {
		group.Sets = append(group.Sets, s.set(name))
	}
	return netfilter.Layout{
		IPv6: s.ipv6, Prefix: "SLUICE-", Own: func(_, chain string) bool { return strings.HasPrefix(chain, s.prefix) },
		Tables: []netfilter.Table{{Name: "mangle"}, {Name: "nat"}, {Name: "filter"}},
		Sets:   []netfilter.SetGroup{group}, Inner: []netfilter.Set{s.set(setNear)},
	}
}

// render fills our chains. They do not depend on Services.
func (s shape) render(r *netfilter.Ruleset, m masquerade) {
	for table, chains := range map[string]map[string][]string{
		"mangle": s.mangle(m), "nat": s.nat(m), "filter": s.filter(),
	} {
		for chain, rules := range chains {
			r.SetChain(netfilter.Place{Table: table, Chain: s.chain(chain)}, rules)
		}
	}
}

// in matches packets in a set, and not others; dirs is ipset's list of "src" and "dst".
func (s shape) in(set, dirs string) string {
	return "-m set --match-set " + s.set(set).Name + " " + dirs + " "
}

func (s shape) not(set, dirs string) string {
	return strings.Replace(s.in(set, dirs), "set --", "set ! --", 1)
}

func (s shape) mangle(m masquerade) map[string][]string {
	near := "-g " + s.chain(chainNear) // leads there and not back
	first := []string{
		s.not(setFrontends, "dst,dst") + "-j RETURN", "-j " + s.chain(chainAdmit), "-j " + s.chain(chainMark),
	}
	in := append(slices.Clip(first), s.in(setInside, "src")+near)
	for _, match := range m.interfaces {
		in = append(in, match+" "+near)
	}
	in = append(in, s.in(setOutside, "dst,dst")+"-j DROP")

	set := fmt.Sprintf("-j MARK --or-mark %#x", m.mark)
	mark := []string{s.in(setExternal, "dst,dst") + set}
	if m.all {
		mark = append(mark, s.in(setCluster, "dst,dst")+set)
	} else if len(m.pods) > 0 {
		mark = append(mark, s.not(setCluster, "dst,dst")+"-j RETURN")
		for _, match := range m.pods {
			mark = append(mark, match+" -j RETURN")
		}
		mark = append(mark, set)
	}
	return map[string][]string{
		chainIn:  in,
		chainOut: append(slices.Clip(first), "-j "+s.chain(chainNear)),
		chainAdmit: {
			s.in(setRestricted, "dst,dst") + s.not(setAllowed, "dst,dst,src") + "-j DROP",
			s.in(setDrop, "dst,dst") + "-j DROP",
		},
		chainMark: mark,
		// A mark is looked up as a whole, so that what others have put there must go.
		chainNear: {"-j SET --map-set " + s.set(setNear).Name + " dst,dst --map-mark"},
	}
}

func (s shape) nat(m masquerade) map[string][]string {
	target := "-j " + kernelmodes.MasqueradeTarget(m.randomFully)
	return map[string][]string{chainPost: {
		s.in(setSelf, "dst,dst,src") + target,
		// No host answers such a packet to where it comes from; a program that binds to an
		// address of a Service sends it.
		s.in(setAddresses, "src") + target,
		fmt.Sprintf("-m mark ! --mark %#x/%#x -j RETURN", m.mark, m.mark),
		fmt.Sprintf("-j MARK --xor-mark %#x", m.mark), // or a tunnel would masquerade again
		target,
	}}
}

func (s shape) filter() map[string][]string {
	reset, unreachable := "-j "+netfilter.Reject(true, s.ipv6), "-j "+netfilter.Reject(false, s.ipv6)
	return map[string][]string{
		chainInput: {"-j " + s.chain(chainRefuse), s.in(setFrontends, "dst,dst") + "-j ACCEPT"},
		chainRefuse: {
			"-p tcp " + s.in(setRefuse, "dst,dst") + reset,
			s.in(setRefuse, "dst,dst") + unreachable,
			s.in(setFrontends, "dst,dst") + "-j RETURN",
			// What else listens on this node is not meant to be reached at addresses of
			// Services.
			"-p tcp " + s.in(setAddresses, "dst") + reset,
			"-p udp " + s.in(setAddresses, "dst") + unreachable,
			"-p sctp " + s.in(setAddresses, "dst") + unreachable,
		},
		// A socket that has a node port as well, and had its datagrams before, may answer when
		// conntrack knows of the client no more. That would begin a flow in which the client is
		// the destination, and ipvs would not masquerade what it sends.
		chainStale:   {"-p udp " + s.in(setFrontends, "src,src") + "-j DROP"},
		chainForward: {"-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"},
	}
}

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

// leadTo returns the UDP frontends of marks, from members of the set that gives them.
func leadTo(near []netfilter.Member) map[key][]netip.AddrPort {
	out := make(map[key][]netip.AddrPort)
	for _, m := range near {
		if f := m.Frontend(); f.Protocol == lb.UDP {
			k := key{mark: m.Mark}
			out[k] = append(out[k], f.Addr)
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
		if f := m.Frontend(); f.Protocol != 0 {
			out[key{Frontend: f}] = true
		}
	}
	for _, m := range numbers {
		out[markOf(m.Port)] = true
	}
	return out
}
