package ipvs

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/sluice-lb/sluice/internal/netfilter"
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

// tables are those that we write to, and all chains of ours in them.
var tables = []struct {
	name   string
	chains []string
	rules  func(shape, script, masquerade)
}{
	{"mangle", []string{chainIn, chainOut, chainAdmit, chainMark, chainNear}, shape.mangle},
	{"nat", []string{chainPost}, shape.nat},
	{"filter", []string{chainInput, chainRefuse, chainStale, chainForward}, shape.filter},
}

// jumps lead from chains of the kernel to ours. They stand before all rules that are not of
// Sluice.
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
		list[i].To, list[i].Position = s.chain(list[i].To), netfilter.BeforeOthers
	}
	return list
}

// numberShift is where a Service's number is in marks.
const numberShift = 16

// masquerade defines whose source is to become this node.
type masquerade struct {
	mark        uint32 // bit
	all         bool
	cidrs       []netip.Prefix // where pods are from
	bridge      string         // or how they come
	interfaces  string
	randomFully bool
}

// script has the rules of chains.
type script map[string][]string

func (b script) rule(chain, match, target string) {
	if match != "" {
		match += " "
	}
	b[chain] = append(b[chain], match+"-j "+target)
}

// enter adds a rule that leads to a chain and not back.
func (b script) enter(chain, match, to string) { b[chain] = append(b[chain], match+" -g "+to) }

// render fills our chains. They do not depend on Services.
func (s shape) render(r *netfilter.Ruleset, m masquerade) {
	b := make(script)
	for _, t := range tables {
		t.rules(s, b, m)
		for _, c := range t.chains {
			r.SetChain(netfilter.Place{Table: t.name, Chain: s.chain(c)}, b[s.chain(c)])
		}
	}
}

// layout is what of a family is ours.
func (s shape) layout() netfilter.Layout {
	l := netfilter.Layout{
		IPv6: s.ipv6, Prefix: "SLUICE-", Own: func(_, chain string) bool { return strings.HasPrefix(chain, s.prefix) },
	}
	for _, t := range tables {
		l.Tables = append(l.Tables, netfilter.Table{Name: t.name})
	}
	var group netfilter.SetGroup
	for _, name := range setOrder {
		group.Sets = append(group.Sets, s.set(name))
	}
	l.Sets, l.Inner = []netfilter.SetGroup{group}, []netfilter.Set{s.set(setNear)}
	return l
}

// match matches packets in a set; dirs is ipset's list of "src" and "dst".
func (s shape) match(set, dirs string) string {
	return "-m set --match-set " + s.set(set).Name + " " + dirs
}

func (s shape) matchNot(set, dirs string) string {
	return "-m set ! --match-set " + s.set(set).Name + " " + dirs
}

func (s shape) mangle(b script, m masquerade) {
	in, out, admit := s.chain(chainIn), s.chain(chainOut), s.chain(chainAdmit)
	mark, near := s.chain(chainMark), s.chain(chainNear)
	for _, c := range []string{in, out} {
		b.rule(c, s.matchNot(setFrontends, "dst,dst"), "RETURN")
		b.rule(c, "", admit)
		b.rule(c, "", mark)
	}
	b.enter(in, s.match(setInside, "src"), near)
	if m.bridge != "" {
		b.enter(in, "-i "+m.bridge, near)
	}
	if m.interfaces != "" {
		b.enter(in, "-i "+m.interfaces+"+", near)
	}
	b.rule(in, s.match(setOutside, "dst,dst"), "DROP")
	b.rule(out, "", near)
	// A mark is looked up as a whole, so that what others have put there must go.
	b.rule(near, "", "SET --map-set "+s.set(setNear).Name+" dst,dst --map-mark")

	b.rule(admit, s.match(setRestricted, "dst,dst")+" "+s.matchNot(setAllowed, "dst,dst,src"), "DROP")
	b.rule(admit, s.match(setDrop, "dst,dst"), "DROP")

	set := fmt.Sprintf("MARK --or-mark %#x", m.mark)
	b.rule(mark, s.match(setExternal, "dst,dst"), set)
	if cluster := s.match(setCluster, "dst,dst"); m.all {
		b.rule(mark, cluster, set)
	} else if m.bridge != "" || m.interfaces != "" || len(m.cidrs) > 0 {
		b.rule(mark, s.matchNot(setCluster, "dst,dst"), "RETURN")
		for _, p := range m.cidrs {
			b.rule(mark, "-s "+p.String(), "RETURN")
		}
		if m.bridge != "" {
			b.rule(mark, "-i "+m.bridge, "RETURN")
		}
		if m.interfaces != "" {
			b.rule(mark, "-i "+m.interfaces+"+", "RETURN")
		}
		b.rule(mark, "", set)
	}
}

func (s shape) nat(b script, m masquerade) {
	post := s.chain(chainPost)
	target := "MASQUERADE"
	if m.randomFully {
		target += " --random-fully"
	}
	b.rule(post, s.match(setSelf, "dst,dst,src"), target)
	// No host answers such a packet to where it comes from; a program that binds to an
	// address of a Service sends it.
	b.rule(post, s.match(setAddresses, "src"), target)
	b.rule(post, fmt.Sprintf("-m mark ! --mark %#x/%#x", m.mark, m.mark), "RETURN")
	b.rule(post, "", fmt.Sprintf("MARK --xor-mark %#x", m.mark)) // or a tunnel would masquerade again
	b.rule(post, "", target)
}

func (s shape) filter(b script, _ masquerade) {
	input, refuse := s.chain(chainInput), s.chain(chainRefuse)
	b.rule(input, "", refuse)
	b.rule(input, s.match(setFrontends, "dst,dst"), "ACCEPT")

	reset, unreachable := "REJECT --reject-with tcp-reset", "REJECT --reject-with icmp-port-unreachable"
	if s.ipv6 {
		unreachable = "REJECT --reject-with icmp6-port-unreachable"
	}
	b.rule(refuse, "-p tcp "+s.match(setRefuse, "dst,dst"), reset)
	b.rule(refuse, s.match(setRefuse, "dst,dst"), unreachable)
	b.rule(refuse, s.match(setFrontends, "dst,dst"), "RETURN")
	// What else listens on this node is not meant to be reached at addresses of
	// Services.
	b.rule(refuse, "-p tcp "+s.match(setAddresses, "dst"), reset)
	for _, p := range []string{"udp", "sctp"} {
		b.rule(refuse, "-p "+p+" "+s.match(setAddresses, "dst"), unreachable)
	}
	// A socket that has a node port as well, and had its datagrams before, may answer when
	// conntrack knows of the client no more. That would begin a flow in which the client is
	// the destination, and ipvs would not masquerade what it sends.
	b.rule(s.chain(chainStale), "-p udp "+s.match(setFrontends, "src,src"), "DROP")
	b.rule(s.chain(chainForward), "-m conntrack --ctstate RELATED,ESTABLISHED", "ACCEPT")
}
