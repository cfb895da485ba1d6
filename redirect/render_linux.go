package redirect

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/lb"
)

// Names of chains, without their prefix.
const (
	chainPrerouting = "PREROUTING"
	chainOutside    = "OUTSIDE"
	chainDrop       = "DROP"
	chainSteer      = "STEER"
	chainTCP        = "TCP"
	chainUDP        = "UDP"
	chainSCTP       = "SCTP"
	chainInput      = "INPUT"
	chainRefuse     = "REFUSE"
)

// probePrefix is for chains that are tried at start and removed at once.
const probePrefix = chainPrefix + "PROBE-"

// buckets is into how many chains rules of UDP frontends are divided at the most: about as
// many as rules in each if there are 1,000. So a new flow is compared with a few dozen rules
// and not with a thousand, and to change one of them iptables and we read one bucket:
// nf_tables returns a rule as a kilobyte of expressions.
const buckets = 32

// tables are those that we write to, and the chains of ours that are always in them, in
// the order in which they are written: packets are screened before any is redirected. The
// nat table has buckets, too.
var tables = []struct {
	name   string
	chains []string
}{
	{"mangle", []string{chainPrerouting, chainOutside, chainDrop}},
	{"nat", []string{chainSteer, chainTCP, chainUDP, chainSCTP}},
	{"filter", []string{chainInput, chainRefuse}},
}

// jumps are at most one in each chain of the kernel, so that each can be its first
// rule.
//
// Also a jump that looks at new flows only is read for each packet of every flow: those of
// mangle are 1 to 2 % of what a request and its answer cost. So they are put in place when
// an entry needs them for the first time, and then stay. The others are not worth it:
// nearly every cluster has a Service without endpoints.
var jumps = []netfilter.Jump{
	{Table: "mangle", From: "PREROUTING", To: chainPrefix + chainPrerouting,
		NewOnly: true, Comment: "sluice: drop clients that are not allowed"},
	{Table: "mangle", From: "OUTPUT", To: chainPrefix + chainDrop,
		NewOnly: true, Comment: "sluice: drop clients that are not allowed"},
	{Table: "nat", From: "PREROUTING", To: chainPrefix + chainSteer, Comment: "sluice: steer what comes in"},
	{Table: "nat", From: "OUTPUT", To: chainPrefix + chainSteer, Comment: "sluice: steer what starts here"},
	{Table: "filter", From: "INPUT", To: chainPrefix + chainInput, NewOnly: true, Comment: "sluice: guard proxy ports"},
	{Table: "filter", From: "FORWARD", To: chainPrefix + chainRefuse,
		NewOnly: true, Comment: "sluice: refuse without endpoints"},
	{Table: "filter", From: "OUTPUT", To: chainPrefix + chainRefuse,
		NewOnly: true, Comment: "sluice: refuse without endpoints"},
}

// own reports whether a chain is one of ours, and not one that is tried: that may be another process's, which starts
// while this one serves.
func own(table, chain string) bool {
	name, ok := strings.CutPrefix(chain, chainPrefix)
	for _, t := range tables {
		if ok && t.name == table {
			return slices.Contains(t.chains, name) || table == "nat" && strings.HasPrefix(name, chainUDP+"-")
		}
	}
	return false
}

// shape is how rules are written on this host.
type shape struct {
	ipv6   bool
	bind   netip.Addr // where steered packets go; invalid means REDIRECT
	sets   bool
	prefix string // of chains
	lease  *netfilter.Lease
}

func (s shape) chain(name string) string { return s.prefix + name }

// set returns the full name of a set, at most 31 characters (ipset(8)).
func (s shape) set(name string) string {
	family := "4"
	if s.ipv6 {
		family = "6"
	}
	return strings.Replace(s.prefix, "-", family+"-", 1) + name
}

// view renders the chains that are rendered whole.
type view struct {
	*ruleset
	entries []Entry // on which they depend, sorted; with sets these are hardly any
	chains  map[netfilter.Place][]string
}

// rule appends a rule to a chain; match may be empty.
func (v *view) rule(table, chain, match, comment, target string) {
	at := netfilter.Place{Table: table, Chain: v.chain(chain)}
	v.chains[at] = append(v.chains[at], rule(match, comment, target))
}

func rule(match, comment, target string) string {
	if match != "" {
		match += " "
	}
	return fmt.Sprintf("%s-m comment --comment %q -j %s", match, "sluice: "+comment, target)
}

// render makes the rules of all chains but buckets and the one that leads to them. It
// depends on nothing else than the view, so that what is equal need not be written.
func (v *view) render() {
	for _, t := range tables {
		for _, c := range t.chains {
			if c != chainUDP {
				v.chains[netfilter.Place{Table: t.name, Chain: v.chain(c)}] = nil
			}
		}
	}
	v.screen()
	v.steer()
	v.guard()
	v.exact(verdictRefuse)
	v.nodePorts(verdictRefuse)
	v.undefined()
}

// undefined makes the rules for what no entry has: a port of a cluster IP is refused, and
// other addresses of ServiceCIDRs are dropped. An address of the node may be a cluster IP,
// and has other uses. What arrives at an entry that is steered has another destination by now.
// ICMP to a cluster IP goes on. Without sets each packet would have to be compared with
// all frontends, so that there are no such rules.
func (v *view) undefined() {
	if !v.sets {
		return
	}
	const away = " -m addrtype ! --dst-type LOCAL"
	match := v.member(setClusterIPs, "dst") + " " + v.noMember(setKnown, "dst,dst") + away
	for _, p := range []lb.Protocol{lb.TCP, lb.UDP, lb.SCTP} {
		v.rule("filter", chainRefuse, "-p "+netfilter.ProtocolName(p)+" "+match, "no such port",
			netfilter.Reject(p == lb.TCP, v.ipv6))
	}
	if len(v.host.ServiceCIDRs) > 0 {
		match = v.member(setCIDRs, "dst") + " " + v.noMember(setClusterIPs, "dst") + " " +
			v.noMember(setKnown, "dst,dst") + away
		v.rule("filter", chainRefuse, match, "no such Service", "DROP")
	}
}

// screen makes the rules of the mangle table, which sees a packet before nat changes
// where it goes to: they drop clients that may not ask.
//
// What comes from the node itself passes OUTPUT. It passes PREROUTING too, on loopback,
// if it is for an address of the node.
func (v *view) screen() {
	mangle := func(chain, match, comment, target string) { v.rule("mangle", chain, match, comment, target) }
	mangle(chainPrerouting, "! -i lo", "other hosts and pods", v.chain(chainOutside))
	mangle(chainPrerouting, "", "all clients", v.chain(chainDrop))
	if v.sets {
		mangle(chainOutside, v.member(setInside, "src"), "pods of this node", "RETURN")
	} else {
		for _, inside := range v.host.Inside {
			mangle(chainOutside, "-s "+inside.String(), "pods of this node", "RETURN")
		}
	}
	v.exact(verdictOutside)
	v.nodePorts(verdictOutside)

	v.exact(verdictDrop)
	const comment = "not from this source"
	if v.sets { // a client that may ask one restricted frontend is not asking another
		mangle(chainDrop, v.member(setRestricted, "dst,dst")+" "+v.noMember(setAllowed, "dst,dst,src"), comment, "DROP")
	} else {
		for _, e := range v.entries {
			for _, source := range e.Sources {
				mangle(chainDrop, "-s "+source.String()+" "+to(e.Frontend), "may ask", "RETURN")
			}
			if e.Sources != nil {
				mangle(chainDrop, to(e.Frontend), comment, "DROP")
			}
		}
	}
	v.nodePorts(verdictDrop)
}

// steer makes the rules of the nat table.
func (v *view) steer() {
	for _, c := range []string{chainTCP, chainUDP, chainSCTP} {
		v.rule("nat", chainSteer, "-p "+strings.ToLower(c), c+" frontends", v.chain(c))
	}
	if v.sets && v.host.TCPPort != 0 {
		v.rule("nat", chainTCP, "-p tcp "+v.member(setTCP, "dst,dst"), "to the TCP proxy", v.target(v.host.TCPPort))
	}
	for _, e := range v.entries {
		switch {
		case e.Action != Redirect:
		case e.Frontend.Protocol == lb.TCP && !v.sets:
			v.rule("nat", chainTCP, to(e.Frontend), "to the TCP proxy", v.target(v.host.TCPPort))
		case e.Frontend.Protocol == lb.SCTP:
			if len(v.host.Local) > 0 && !v.bind.IsValid() {
				target := "DNAT --to-destination " + netip.AddrPortFrom(v.host.Local[0], e.Port).String()
				v.rule("nat", chainSCTP, to(e.Frontend)+" -m addrtype --src-type LOCAL", "to its own port", target)
			}
			v.rule("nat", chainSCTP, to(e.Frontend), "to its own port", v.target(e.Port))
		}
	}
}

// toPort returns the rule of a UDP frontend in its bucket.
func (s shape) toPort(e Entry) string {
	return rule(to(e.Frontend), "to its own port", s.target(e.Port))
}

// guard makes the rules of the filter table that accept what comes to the proxy as it
// should, refuse what has no endpoints, and reject the rest that comes to the proxy.
func (v *view) guard() {
	input := func(match, comment, target string) { v.rule("filter", chainInput, match, comment, target) }
	ports := v.proxyPorts()
	for _, m := range ports {
		input(m.match+" -m conntrack --ctstate DNAT", "steered to the proxy", "ACCEPT")
	}
	// The address of a packet does not change, and so conntrack does not call it
	// DNAT, if a frontend is on an address of the node and has the proxy port's
	// own number. Asking for the proxy port is asking for the frontend then.
	for _, e := range v.entries {
		if e.numberedAsProxy(v.host) {
			input(to(e.Frontend), "numbered as its proxy port", "ACCEPT")
		}
	}
	input("", "refuse without endpoints", v.chain(chainRefuse))
	v.exact(verdictAccept)
	v.nodePorts(verdictAccept)
	for _, m := range ports {
		input(m.match, "straight to a proxy port", netfilter.Reject(m.protocol == lb.TCP, v.ipv6))
	}
}

// portMatch matches packets of one protocol.
type portMatch struct {
	protocol lb.Protocol
	match    string
}

// multiportMax is how many ports one multiport match takes
// (iptables-extensions(8)).
const multiportMax = 15

// proxyPorts returns matches that together cover all proxy ports.
func (v *view) proxyPorts() []portMatch {
	var out []portMatch
	if v.host.TCPPort != 0 {
		out = append(out, portMatch{lb.TCP, fmt.Sprintf("-p tcp -m tcp --dport %d", v.host.TCPPort)})
	}
	protocols := []lb.Protocol{lb.UDP, lb.SCTP}
	if v.sets {
		out = append(out, portMatch{lb.UDP, "-p udp " + v.member(setUDPPorts, "dst")})
		protocols = protocols[1:]
	}
	for _, proto := range protocols {
		var ports []string
		seen := make(map[uint16]bool)
		for _, e := range v.entries {
			if e.Action == Redirect && e.Frontend.Protocol == proto && !seen[e.Port] {
				seen[e.Port] = true
				ports = append(ports, strconv.Itoa(int(e.Port)))
			}
		}
		for some := range slices.Chunk(ports, multiportMax) {
			match := "-p " + netfilter.ProtocolName(proto) + " -m multiport --dports " + strings.Join(some, ",")
			out = append(out, portMatch{proto, match})
		}
	}
	return out
}

// verdict is what becomes of packets to some frontends. Those with an exact address are
// members of a set, and node ports of one for each protocol but SCTP. Without sets there
// is a rule for each.
type verdict struct {
	table, chain string
	set          string
	has          func(Entry) bool
	comment      string
	target       string // empty: what its protocol's clients understand (netfilter.Reject)
	passes       bool   // also what asks for a frontend that hides a node port
}

var (
	verdictAccept  = verdict{"filter", chainInput, setAccept, does(Accept), "the proxy listens", "ACCEPT", true}
	verdictRefuse  = verdict{"filter", chainRefuse, setRefuse, does(Refuse), "no endpoints", "", false}
	verdictDrop    = verdict{"mangle", chainDrop, setDrop, does(Drop), "no answer", "DROP", false}
	verdictOutside = verdict{"mangle", chainOutside, setOutside, func(e Entry) bool { return e.DropOutside },
		"not for other hosts", "DROP", false}

	verdicts = []verdict{verdictAccept, verdictRefuse, verdictDrop, verdictOutside}
)

func does(a Action) func(Entry) bool { return func(e Entry) bool { return e.Action == a } }

// sets returns all sets of a verdict.
func (x verdict) sets() []string { return []string{x.set, x.nodeSet(lb.TCP), x.nodeSet(lb.UDP)} }

// nodeSet returns the set of node ports of a protocol.
func (x verdict) nodeSet(p lb.Protocol) string { return x.set + "-NODE-" + p.String() }

// verdict makes a rule for what matches.
func (v *view) verdict(x verdict, p lb.Protocol, match string) {
	target := x.target
	if target == "" {
		target = netfilter.Reject(p == lb.TCP, v.ipv6)
	}
	v.rule(x.table, x.chain, match, x.comment, target)
}

// exact makes the rules of a verdict for frontends with an exact address.
func (v *view) exact(x verdict) {
	if v.sets {
		match := v.member(x.set, "dst,dst")
		if x.target == "" { // members hold a protocol, so that the second rule is for UDP and SCTP
			v.verdict(x, lb.TCP, "-p tcp "+match)
		}
		v.verdict(x, lb.UDP, match)
		return
	}
	for _, e := range v.entries {
		if x.has(e) && !nodePort(e.Frontend.Addr) {
			v.verdict(x, e.Frontend.Protocol, to(e.Frontend))
		}
	}
}

// nodePorts makes the rules of a verdict for node ports. A frontend with the exact address
// takes precedence: packets to it return if it has the number of a node port. Hardly any has.
func (v *view) nodePorts(x verdict) {
	for _, e := range v.entries {
		if !x.passes && !nodePort(e.Frontend.Addr) && x.has(v.nodePortOf(e.Frontend)) {
			v.rule(x.table, x.chain, to(e.Frontend), "hides a node port", "RETURN")
		}
	}
	if v.sets {
		for _, p := range []lb.Protocol{lb.TCP, lb.UDP} {
			v.verdict(x, p, "-p "+netfilter.ProtocolName(p)+" "+v.member(x.nodeSet(p), "dst")+local)
		}
	}
	for _, e := range v.entries {
		if f := e.Frontend; x.has(e) && nodePort(f.Addr) && (!v.sets || f.Protocol == lb.SCTP) {
			v.verdict(x, f.Protocol, to(f))
		}
	}
}

// local matches packets to any address of this node.
const local = " -m addrtype --dst-type LOCAL"

// member matches packets in a set; dirs is ipset's list of "src" and "dst".
func (s shape) member(set, dirs string) string {
	return "-m set --match-set " + s.set(set) + " " + dirs
}

// noMember matches packets that are not in a set.
func (s shape) noMember(set, dirs string) string {
	return "-m set ! --match-set " + s.set(set) + " " + dirs
}

// to matches packets that ask for a frontend.
func to(f lb.Frontend) string {
	if nodePort(f.Addr) {
		return netfilter.ToFrontend(f) + local
	}
	return netfilter.ToFrontend(f)
}

// target sends packets to a proxy port. REDIRECT means the primary address of the
// interface a packet came by, or loopback if it started here.
func (s shape) target(port uint16) string {
	if s.bind.IsValid() {
		return "DNAT --to-destination " + netip.AddrPortFrom(s.bind, port).String()
	}
	return fmt.Sprintf("REDIRECT --to-ports %d", port)
}
