package trace

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Packet is the first packet of a flow.
type Packet struct {
	Protocol string // "tcp", "udp" or "sctp"
	Src, Dst netip.AddrPort
	In       string // the interface it comes by; empty if this node sends it
	Mark     uint32
}

// Node is what rules match that they do not contain.
type Node struct {
	// Addresses are its own, loopback not needed.
	Addresses []netip.Addr

	// InSet reports whether a packet is in a set; dirs is ipset's list of "src" and
	// "dst". nil: not known.
	InSet func(set, dirs string, p Packet) bool

	// Recent reports whether a list of the match recent remembers the client. nil: no.
	Recent func(list string, client netip.Addr) bool
}

// Fate is how a packet ends.
type Fate string

// The fates.
const (
	Here    Fate = "delivered here"   // to a socket of this node
	Forward Fate = "forwarded"        // to another host, a pod included
	Reject  Fate = "rejected"         // its sender gets an error
	Drop    Fate = "dropped"          // its sender gets nothing
	Endless Fate = "walks in circles" // through chains that lead to each other
)

// Outcome is one way that a packet may go.
type Outcome struct {
	Probability float64 // of this one among all, 0 to 1
	Fate        Fate
	With        string         // how it is rejected, as "tcp-reset"
	Dst         netip.AddrPort // where it goes to in the end
	Masqueraded bool           // its receiver sees this node as the source
	Steps       []string       // the rules that it matched, each "table: rule"
	Notes       []string       // what had to be guessed
}

// String is one line, without the steps.
func (o Outcome) String() string {
	s := fmt.Sprintf("%.4g%% %s", 100*o.Probability, o.Fate)
	if o.Fate == Here || o.Fate == Forward {
		s += fmt.Sprintf(" to %s", o.Dst)
	}
	if o.Masqueraded {
		s += ", masqueraded"
	}
	return s
}

// maxDepth bounds how deep chains lead to chains; the kernel refuses loops.
const maxDepth = 64

// walk is one way of a packet, as far as it has been walked.
type walk struct {
	rules *Rules
	node  *Node
	Packet
	out  Outcome
	hook string
	dnat bool
	verdict
}

// verdict is where a walk goes on.
type verdict int

const (
	next   verdict = iota // at the next rule
	back                  // behind the rule that led to the chain
	accept                // at the next chain of the kernel
	stop                  // nowhere: out.Fate
)

// Trace returns every way that a packet may go, the likeliest first. Their
// probabilities add up to 1.
func (r *Rules) Trace(node Node, p Packet) []Outcome {
	w := walk{rules: r, node: &node, Packet: p}
	w.out.Probability = 1
	hook := "PREROUTING"
	if w.In == "" {
		hook = "OUTPUT"
	}
	var all []Outcome
	for _, w := range w.pass(place{"mangle", hook}, place{"nat", hook}) {
		for _, w := range w.pass(w.route()...) {
			w.out.Dst = w.Dst
			all = append(all, w.out)
		}
	}
	slices.SortStableFunc(all, func(a, b Outcome) int { return cmp.Compare(b.Probability, a.Probability) })
	return all
}

// pass takes the walk through chains of the kernel, and returns each way out of them.
func (w walk) pass(hooks ...place) []walk {
	if len(hooks) == 0 || w.verdict == stop {
		return []walk{w}
	}
	var out []walk
	for _, w := range w.table(hooks[0]) {
		out = append(out, w.pass(hooks[1:]...)...)
	}
	return out
}

// route decides where the packet goes to, and returns where it meets rules on its way.
func (w *walk) route() []place {
	if w.verdict == stop {
		return nil
	}
	local := w.isLocal(w.Dst.Addr())
	if w.out.Fate = Forward; local {
		w.out.Fate = Here
	}
	switch {
	case w.In == "" && local: // it comes in again by loopback
		return []place{{"filter", "OUTPUT"}, {"nat", "POSTROUTING"}, {"mangle", "PREROUTING"}, {"filter", "INPUT"}}
	case w.In == "":
		return []place{{"filter", "OUTPUT"}, {"nat", "POSTROUTING"}}
	case local:
		return []place{{"filter", "INPUT"}}
	}
	return []place{{"filter", "FORWARD"}, {"nat", "POSTROUTING"}}
}

// table takes the walk through one chain of the kernel.
func (w walk) table(at place) []walk {
	w.hook = at.chain
	if (at.chain == "PREROUTING" || at.chain == "INPUT") && w.In == "" {
		w.In = "lo"
	}
	c := w.rules.chains[at]
	if c == nil {
		return []walk{w}
	}
	out := w.chain(at, 0)
	for i := range out {
		switch w := &out[i]; {
		case w.verdict == accept:
			w.verdict = next
		case w.verdict == next && c.policy == "DROP":
			w.end(Drop)
			w.step(at.table, "policy of "+at.chain)
		}
	}
	return out
}

// chain takes the walk through a chain, and returns each way out of it.
func (w walk) chain(at place, depth int) (out []walk) {
	if depth > maxDepth {
		w.end(Endless)
		return []walk{w}
	}
	inside := []walk{w}
	rules := w.rules.chains[at].rules
	for i := range rules {
		r := &rules[i]
		if len(inside) == 1 && inside[0].matches(r) == 0 {
			continue // as with most rules
		}
		var rest []walk
		for _, w := range inside {
			chance := w.matches(r)
			if chance < 1 {
				rest = append(rest, w.fork(1-chance))
			}
			if chance == 0 {
				continue
			}
			w = w.fork(chance)
			w.step(at.table, r.text)
			for _, w := range w.target(at, r, depth) {
				if w.verdict == next {
					rest = append(rest, w)
				} else {
					out = append(out, w)
				}
			}
		}
		inside = rest
	}
	out = append(out, inside...)
	for i := range out {
		if out[i].verdict == back {
			out[i].verdict = next
		}
	}
	return out
}

// fork returns a copy of the walk that is as likely as that and the chance.
func (w walk) fork(chance float64) walk {
	w.out.Probability *= chance
	w.out.Steps, w.out.Notes = slices.Clip(w.out.Steps), slices.Clip(w.out.Notes)
	return w
}

func (w *walk) step(table, rule string) { w.out.Steps = append(w.out.Steps, table+": "+rule) }

func (w *walk) note(s string) {
	if !slices.Contains(w.out.Notes, s) {
		w.out.Notes = append(w.out.Notes, s)
	}
}

func (w *walk) isLocal(a netip.Addr) bool {
	return a.IsLoopback() || slices.Contains(w.node.Addresses, a)
}

func (w *walk) end(f Fate) { w.out.Fate, w.verdict = f, stop }

// target applies a rule that has matched.
func (w walk) target(at place, r *rule, depth int) []walk {
	switch r.target {
	case "", "LOG", "NFLOG", "CONNMARK", "TRACE", "SET", "CLASSIFY", "CHECKSUM", "TCPMSS", "CT":
	case "ACCEPT":
		w.verdict = accept
	case "RETURN":
		w.verdict = back
	case "DROP":
		w.end(Drop)
	case "REJECT":
		w.end(Reject)
		w.out.With = valueOf(r.arguments, "--reject-with")
	case "DNAT":
		w.verdict = accept
		if to, ok := parseTarget(valueOf(r.arguments, "--to-destination"), w.Dst); ok {
			w.Dst, w.dnat = to, true
		} else {
			w.note("cannot read the target of: " + r.text)
		}
	case "REDIRECT":
		w.verdict = accept
		w.redirect(r)
	case "MASQUERADE", "SNAT":
		w.verdict, w.out.Masqueraded = accept, true
	case "MARK":
		w.mark(r)
	default:
		to := place{at.table, r.target}
		if w.rules.chains[to] == nil {
			w.note("unknown target " + r.target)
			break
		}
		out := w.chain(to, depth+1)
		for i := range out {
			if r.goTo && out[i].verdict == next {
				out[i].verdict = back
			}
		}
		return out
	}
	return []walk{w}
}

// redirect sends the packet to a port of this node.
func (w *walk) redirect(r *rule) {
	to := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if w.Dst.Addr().Is6() {
		to = netip.IPv6Loopback()
	}
	if w.In != "" { // to the address of the interface, whichever that is
		same := func(a netip.Addr) bool { return a.Is6() == to.Is6() }
		if i := slices.IndexFunc(w.node.Addresses, same); i >= 0 {
			to = w.node.Addresses[i]
		}
	}
	port := w.Dst.Port()
	if n, err := strconv.ParseUint(valueOf(r.arguments, "--to-ports"), 10, 16); err == nil {
		port = uint16(n)
	}
	w.Dst, w.dnat = netip.AddrPortFrom(to, port), true
}

// parseTarget reads the argument of DNAT, which may lack a port.
func parseTarget(text string, was netip.AddrPort) (netip.AddrPort, bool) {
	if ap, err := netip.ParseAddrPort(text); err == nil {
		return ap, true
	}
	a, err := netip.ParseAddr(strings.Trim(text, "[]"))
	return netip.AddrPortFrom(a, was.Port()), err == nil
}

// mark changes the mark as the options of target MARK say (iptables-extensions(8)).
func (w *walk) mark(r *rule) {
	for _, o := range r.arguments {
		value, mask := parseMark(o.value())
		switch o.name {
		case "--or-mark":
			w.Mark |= value
		case "--and-mark":
			w.Mark &= value
		case "--xor-mark":
			w.Mark ^= value
		case "--set-xmark":
			w.Mark = w.Mark&^mask ^ value
		case "--set-mark":
			w.Mark = w.Mark&^(mask|value) | value
		}
	}
}

// parseMark reads "value/mask".
func parseMark(text string) (value, mask uint32) {
	v, m, masked := strings.Cut(text, "/")
	n, _ := strconv.ParseUint(v, 0, 32)
	if !masked {
		return uint32(n), 1<<32 - 1
	}
	k, _ := strconv.ParseUint(m, 0, 32)
	return uint32(n), uint32(k)
}
