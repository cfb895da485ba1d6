package redirect

import (
	"bytes"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

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

const (
	chainPrefix = "SLUICE-"
	// probePrefix is for chains that are tried at start and removed at once.
	probePrefix = chainPrefix + "PROBE-"
)

// tables are those that we write to, and the chains of ours that are always in them, in
// the order in which they are written: nothing is steered before it is known who may
// ask. The nat table has buckets, too.
var tables = []struct {
	name   string
	chains []string
	rules  func(shape, *script, Plan)
}{
	{"mangle", []string{chainPrerouting, chainOutside, chainDrop}, shape.screen},
	{"nat", []string{chainSteer, chainTCP, chainUDP, chainSCTP}, shape.steer},
	{"filter", []string{chainInput, chainRefuse}, shape.guard},
}

// jump is a rule in a chain of the kernel that leads to a chain of ours.
type jump struct {
	table, from, to string
	newOnly         bool // only the first packet of a flow; nat sees no other anyway
	comment         string
	needed          func(Plan) bool // nil: always
}

// jumps are at most one in each chain of the kernel, so that each can be its first
// rule.
//
// Also a jump that looks at new flows only is asked for each packet of every flow: those of
// mangle are 1 to 2 % of what a request and its answer cost. So they are put in place when
// a plan needs them for the first time, and then stay. The others are not worth it: nearly
// every cluster has a Service without endpoints.
var jumps = []jump{
	{table: "mangle", from: "PREROUTING", to: chainPrerouting, newOnly: true, comment: "sluice: who may ask", needed: Plan.screens},
	{table: "mangle", from: "OUTPUT", to: chainDrop, newOnly: true, comment: "sluice: who may ask", needed: Plan.screens},
	{table: "nat", from: "PREROUTING", to: chainSteer, comment: "sluice: steer what comes in"},
	{table: "nat", from: "OUTPUT", to: chainSteer, comment: "sluice: steer what starts here"},
	{table: "filter", from: "INPUT", to: chainInput, newOnly: true, comment: "sluice: guard proxy ports"},
	{table: "filter", from: "FORWARD", to: chainRefuse, newOnly: true, comment: "sluice: refuse without endpoints"},
	{table: "filter", from: "OUTPUT", to: chainRefuse, newOnly: true, comment: "sluice: refuse without endpoints"},
}

// same reports whether both are the same jump.
func (j jump) same(o jump) bool { return j.table == o.table && j.from == o.from }

// spec returns the jump as arguments of iptables -I or -C.
func (j jump) spec() []string {
	var s []string
	if j.newOnly {
		s = append(s, "-m", "conntrack", "--ctstate", "NEW")
	}
	return append(s, "-m", "comment", "--comment", j.comment, "-j", chainPrefix+j.to)
}

// shape is how rules are written on this host.
type shape struct {
	ipv6   bool
	bind   netip.Addr // where steered packets go; invalid means REDIRECT
	sets   bool
	prefix string // of chains
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

// script is the input of iptables-restore being written.
type script struct{ bytes.Buffer }

func (b *script) table(name string) { fmt.Fprintf(b, "*%s\n", name) }

func (b *script) chain(name string) { fmt.Fprintf(b, ":%s - [0:0]\n", name) }

func (b *script) commit() { b.WriteString("COMMIT\n") }

// rule appends a rule; match may be empty.
func (b *script) rule(chain, match, comment, target string) {
	if match != "" {
		match += " "
	}
	fmt.Fprintf(b, "-A %s %s-m comment --comment %q -j %s\n", chain, match, "sluice: "+comment, target)
}

// line appends an operation on a rule of another's chain.
func (b *script) line(op, chain string, spec []string) {
	fmt.Fprintf(b, "%s %s", op, chain)
	for _, w := range spec {
		if strings.Contains(w, " ") {
			w = strconv.Quote(w)
		}
		fmt.Fprintf(b, " %s", w)
	}
	b.WriteByte('\n')
}

// render returns the input of iptables-restore --noflush that makes our chains
// say what the plan says. It depends on its arguments only, and with sets hardly
// on anything but UDP and SCTP frontends, so that equal text means that there is
// nothing to write. The plan is one of Plan.family.
func (s shape) render(p Plan) []byte {
	var b script
	for _, t := range tables {
		b.table(t.name)
		for _, c := range t.chains {
			b.chain(s.chain(c))
		}
		if t.name == "nat" {
			for _, i := range bucketsOf(p) {
				b.chain(s.bucket(i))
			}
		}
		t.rules(s, &b, p)
		b.commit()
	}
	return b.Bytes()
}

// steer writes the rules of the nat table.
func (s shape) steer(b *script, p Plan) {
	b.rule(s.chain(chainSteer), "-p tcp", "TCP frontends", s.chain(chainTCP))
	b.rule(s.chain(chainSteer), "-p udp", "UDP frontends", s.chain(chainUDP))
	b.rule(s.chain(chainSteer), "-p sctp", "SCTP frontends", s.chain(chainSCTP))
	switch {
	case p.TCPPort == 0:
	case s.sets:
		b.rule(s.chain(chainTCP), "-p tcp "+s.member(setTCP, "dst,dst"), "to the TCP proxy", s.target(p.TCPPort))
	default:
		for _, addr := range p.TCP {
			b.rule(s.chain(chainTCP), to(lb.Frontend{Protocol: lb.TCP, Addr: addr}), "to the TCP proxy", s.target(p.TCPPort))
		}
	}
	for _, i := range bucketsOf(p) {
		b.rule(s.chain(chainUDP), s.lastBits(i), "by the last bits", s.bucket(i))
	}
	for _, f := range p.Ported {
		chain := s.chain(chainSCTP)
		if f.Frontend.Protocol == lb.UDP {
			chain = s.bucket(bucketOf(f.Frontend.Addr.Addr()))
		} else if len(p.Local) > 0 && !s.bind.IsValid() {
			target := "DNAT --to-destination " + netip.AddrPortFrom(p.Local[0], f.Port).String()
			b.rule(chain, to(f.Frontend)+" -m addrtype --src-type LOCAL", "to its own port", target)
		}
		b.rule(chain, to(f.Frontend), "to its own port", s.target(f.Port))
	}
}

// guard writes the rules of the filter table: they accept what comes to the proxy
// as it should, refuse what has no endpoints, and reject the rest that comes to the
// proxy.
func (s shape) guard(b *script, p Plan) {
	chain := s.chain(chainInput)
	ports := s.proxyPorts(p)
	for _, m := range ports {
		b.rule(chain, m.match+" -m conntrack --ctstate DNAT", "steered to the proxy", "ACCEPT")
	}
	// The address of a packet does not change, and so conntrack does not call it
	// DNAT, if a frontend is on an address of the node and has the proxy port's
	// own number. Asking for the proxy port is asking for the frontend then.
	for _, addr := range p.TCP {
		if addr.Port() == p.TCPPort {
			b.rule(chain, to(lb.Frontend{Protocol: lb.TCP, Addr: addr}), "numbered as its proxy port", "ACCEPT")
		}
	}
	for _, f := range p.Ported {
		if f.Frontend.Addr.Port() == f.Port {
			b.rule(chain, to(f.Frontend), "numbered as its proxy port", "ACCEPT")
		}
	}
	b.rule(chain, "", "refuse without endpoints", s.chain(chainRefuse))
	for _, match := range s.exactly(setAccept, p.Accept) {
		b.rule(chain, match, "the proxy listens", "ACCEPT")
	}
	for _, m := range s.nodePorts(setAcceptNode, p.Accept) {
		b.rule(chain, m.match, "the proxy listens", "ACCEPT")
	}
	for _, m := range ports {
		b.rule(chain, m.match, "straight to a proxy port", s.reject(m.protocol))
	}
	s.refuse(b, p)
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
func (s shape) proxyPorts(p Plan) []portMatch {
	var out []portMatch
	if p.TCPPort != 0 {
		out = append(out, portMatch{lb.TCP, fmt.Sprintf("-p tcp -m tcp --dport %d", p.TCPPort)})
	}
	protocols := []lb.Protocol{lb.UDP, lb.SCTP}
	if s.sets {
		out = append(out, portMatch{lb.UDP, "-p udp " + s.member(setUDPPorts, "dst")})
		protocols = protocols[1:]
	}
	for _, proto := range protocols {
		var ports []string
		seen := make(map[uint16]bool)
		for _, f := range p.Ported {
			if f.Frontend.Protocol == proto && !seen[f.Port] {
				seen[f.Port] = true
				ports = append(ports, strconv.Itoa(int(f.Port)))
			}
		}
		for len(ports) > 0 {
			n := min(len(ports), multiportMax)
			out = append(out, portMatch{proto, fmt.Sprintf("-p %s -m multiport --dports %s", name(proto), strings.Join(ports[:n], ","))})
			ports = ports[n:]
		}
	}
	return out
}

// refuse writes the rules that reject what is asked of services without
// endpoints. A frontend with the exact address goes before a node port.
func (s shape) refuse(b *script, p Plan) {
	chain := s.chain(chainRefuse)
	const comment = "no endpoints"
	if s.sets {
		// Members hold a protocol, so that the second rule is for UDP and SCTP.
		b.rule(chain, "-p tcp "+s.member(setRefuse, "dst,dst"), comment, s.reject(lb.TCP))
		b.rule(chain, s.member(setRefuse, "dst,dst"), comment, s.reject(lb.UDP))
	} else {
		for _, f := range p.Refuse {
			if !nodePort(f.Addr) {
				b.rule(chain, to(f), comment, s.reject(f.Protocol))
			}
		}
	}
	for _, f := range hidden(p, p.Refuse) {
		b.rule(chain, to(f), "hides a node port", "RETURN")
	}
	for _, m := range s.nodePorts(setRefuseNode, p.Refuse) {
		b.rule(chain, m.match, comment, s.reject(m.protocol))
	}
}

// exactly returns matches for those of a list of frontends that have an exact
// address, which are the members of a set.
func (s shape) exactly(set string, list []lb.Frontend) []string {
	if s.sets {
		return []string{s.member(set, "dst,dst")}
	}
	var out []string
	for _, f := range list {
		if !nodePort(f.Addr) {
			out = append(out, to(f))
		}
	}
	return out
}

// nodePorts returns matches for the node ports in a list of frontends, which are
// the members of one set for each protocol but SCTP.
func (s shape) nodePorts(set string, list []lb.Frontend) []portMatch {
	var out []portMatch
	if s.sets {
		for _, proto := range []lb.Protocol{lb.TCP, lb.UDP} {
			out = append(out, portMatch{proto, "-p " + name(proto) + " " + s.member(set+proto.String(), "dst") + local})
		}
	}
	for _, f := range list {
		if nodePort(f.Addr) && (!s.sets || f.Protocol == lb.SCTP) {
			out = append(out, portMatch{f.Protocol, to(f)})
		}
	}
	return out
}

// local matches packets to any address of this node.
const local = " -m addrtype --dst-type LOCAL"

// name is how iptables spells a protocol.
func name(p lb.Protocol) string { return strings.ToLower(p.String()) }

// member matches packets in a set; dirs is ipset's list of "src" and "dst".
func (s shape) member(set, dirs string) string {
	return "-m set --match-set " + s.set(set) + " " + dirs
}

// to matches packets that ask for a frontend.
func to(f lb.Frontend) string {
	proto := name(f.Protocol)
	m := fmt.Sprintf("-p %s -m %s --dport %d", proto, proto, f.Addr.Port())
	if nodePort(f.Addr) {
		return m + local
	}
	addr := f.Addr.Addr()
	return fmt.Sprintf("-d %s/%d %s", addr, addr.BitLen(), m)
}

// target sends packets to a proxy port. REDIRECT means the primary address of the
// interface a packet came by, or loopback if it started here.
func (s shape) target(port uint16) string {
	if s.bind.IsValid() {
		return "DNAT --to-destination " + netip.AddrPortFrom(s.bind, port).String()
	}
	return fmt.Sprintf("REDIRECT --to-ports %d", port)
}

// reject refuses a packet in the way that its protocol's clients understand at
// once.
func (s shape) reject(p lb.Protocol) string {
	switch {
	case p == lb.TCP:
		return "REJECT --reject-with tcp-reset"
	case s.ipv6:
		return "REJECT --reject-with icmp6-port-unreachable"
	}
	return "REJECT --reject-with icmp-port-unreachable"
}
