package ipvs

import (
	"bytes"
	"fmt"
	"net/netip"

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
	chainAsk     = "ASK"     // mangle: who may ask
	chainMark    = "MARK"    // mangle: who is to be masqueraded
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
	rules  func(shape, *script, masquerade)
}{
	{"mangle", []string{chainIn, chainOut, chainAsk, chainMark, chainNear}, shape.mangle},
	{"nat", []string{chainPost}, shape.nat},
	{"filter", []string{chainInput, chainRefuse, chainStale, chainForward}, shape.filter},
}

// jumps are the rules in chains of the kernel that lead to ours. They stand before all
// rules that are not of Sluice.
var jumps = []struct {
	table, from, to string
	newOnly         bool // only the first packet of a flow; nat sees no other anyway
	comment         string
}{
	{"mangle", "PREROUTING", chainIn, true, "sluice ipvs: who asks"},
	{"mangle", "OUTPUT", chainOut, true, "sluice ipvs: who asks"},
	{"nat", "POSTROUTING", chainPost, false, "sluice ipvs: masquerade"},
	{"filter", "INPUT", chainInput, true, "sluice ipvs: let in"},
	{"filter", "OUTPUT", chainRefuse, true, "sluice ipvs: refuse without endpoints"},
	{"filter", "OUTPUT", chainStale, true, "sluice ipvs: what has moved"},
	{"filter", "FORWARD", chainForward, false, "sluice ipvs: let answers through"},
}

// numberShift is where a Service's number is in marks.
const numberShift = 16

// masquerade says whose source is to become this node.
type masquerade struct {
	mark        uint32 // bit
	all         bool
	cidrs       []netip.Prefix // where pods are from
	bridge      string         // or how they come
	interfaces  string
	randomFully bool
}

// script is the input of iptables-restore being written.
type script struct{ bytes.Buffer }

func (b *script) rule(chain, match, target string) {
	if match != "" {
		match += " "
	}
	fmt.Fprintf(b, "-A %s %s-j %s\n", chain, match, target)
}

// enter writes a rule that leads to a chain and not back.
func (b *script) enter(chain, match, to string) {
	fmt.Fprintf(b, "-A %s %s -g %s\n", chain, match, to)
}

// render returns the input of iptables-restore --noflush that makes our chains say
// what they are to say. It does not depend on Services.
func (s shape) render(m masquerade) []byte {
	var b script
	for _, t := range tables {
		fmt.Fprintf(&b, "*%s\n", t.name)
		for _, c := range t.chains {
			fmt.Fprintf(&b, ":%s - [0:0]\n", s.chain(c))
		}
		t.rules(s, &b, m)
		b.WriteString("COMMIT\n")
	}
	return b.Bytes()
}

// match matches packets in a set; dirs is ipset's list of "src" and "dst".
func (s shape) match(set, dirs string) string {
	return "-m set --match-set " + s.set(set).Name + " " + dirs
}

func (s shape) matchNot(set, dirs string) string {
	return "-m set ! --match-set " + s.set(set).Name + " " + dirs
}

func (s shape) mangle(b *script, m masquerade) {
	in, out, ask, mark, near := s.chain(chainIn), s.chain(chainOut), s.chain(chainAsk), s.chain(chainMark), s.chain(chainNear)
	for _, c := range []string{in, out} {
		b.rule(c, s.matchNot(setFrontends, "dst,dst"), "RETURN")
		b.rule(c, "", ask)
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

	b.rule(ask, s.match(setRestricted, "dst,dst")+" "+s.matchNot(setAllowed, "dst,dst,src"), "DROP")
	b.rule(ask, s.match(setDrop, "dst,dst"), "DROP")

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

func (s shape) nat(b *script, m masquerade) {
	post := s.chain(chainPost)
	target := "MASQUERADE"
	if m.randomFully {
		target += " --random-fully"
	}
	b.rule(post, s.match(setSelf, "dst,dst,src"), target)
	// Nobody answers such a packet to where it comes from; a program that binds to an
	// address of a Service sends it.
	b.rule(post, s.match(setAddresses, "src"), target)
	b.rule(post, fmt.Sprintf("-m mark ! --mark %#x/%#x", m.mark, m.mark), "RETURN")
	b.rule(post, "", fmt.Sprintf("MARK --xor-mark %#x", m.mark)) // or a tunnel would masquerade again
	b.rule(post, "", target)
}

func (s shape) filter(b *script, _ masquerade) {
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
	// the one who answers, and ipvs would not masquerade what he sends.
	b.rule(s.chain(chainStale), "-p udp "+s.match(setFrontends, "src,src"), "DROP")
	b.rule(s.chain(chainForward), "-m conntrack --ctstate RELATED,ESTABLISHED", "ACCEPT")
}

// unrender returns the input of iptables-restore that removes our chains, to which no
// jump may lead.
func (s shape) unrender() []byte {
	var b script
	for _, t := range tables {
		fmt.Fprintf(&b, "*%s\n", t.name)
		for _, c := range t.chains {
			fmt.Fprintf(&b, ":%s - [0:0]\n", s.chain(c)) // empties it
		}
		for _, c := range t.chains {
			fmt.Fprintf(&b, "-X %s\n", s.chain(c))
		}
		b.WriteString("COMMIT\n")
	}
	return b.Bytes()
}

// places are the chains that Verify looks at.
func (s shape) places() map[netfilter.Place][]netfilter.Rule {
	at := make(map[netfilter.Place][]netfilter.Rule)
	for _, j := range jumps {
		at[netfilter.Place{Table: j.table, Chain: j.from}] = nil
	}
	for _, t := range tables {
		for _, c := range t.chains {
			at[netfilter.Place{Table: t.name, Chain: s.chain(c)}] = nil
		}
	}
	return at
}
