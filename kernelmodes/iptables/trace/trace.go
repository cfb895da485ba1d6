package trace

import (
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

// walk is the state of one way of a packet.
type walk struct {
	rules *Rules
	node  *Node
	Packet
	out  Outcome
	hook string
	dnat bool
}

// result is how a chain is left.
type result int

const (
	goOn result = iota // at its end, or by RETURN
	accept
	stop // the walk is over: out.Fate
)

// Trace returns every way that a packet may go, the likeliest first. Their
// probabilities add up to 1.
func (r *Rules) Trace(node Node, p Packet) []Outcome {
	var all []Outcome
	w := walk{rules: r, node: &node, Packet: p}
	w.out.Probability = 1
	end := func(w walk) {
		w.out.Dst = w.Dst
		all = append(all, w.out)
	}
	w.pass(w.hooks(), end)
	slices.SortStableFunc(all, func(a, b Outcome) int {
		switch {
		case a.Probability > b.Probability:
			return -1
		case a.Probability < b.Probability:
			return 1
		}
		return 0
	})
	return all
}

// hooks returns where a packet meets rules before it is routed.
func (w *walk) hooks() []place {
	hook := "PREROUTING"
	if w.In == "" {
		hook = "OUTPUT"
	}
	return []place{{"mangle", hook}, {"nat", hook}}
}

// pass takes the walk through hooks, and then through those that routing leads to.
func (w walk) pass(hooks []place, end func(walk)) {
	if len(hooks) == 0 {
		w.route(end)
		return
	}
	w.table(hooks[0], func(w walk) { w.pass(hooks[1:], end) }, end)
}

// route takes the walk from the first hooks to its end.
func (w walk) route(end func(walk)) {
	local := w.isLocal(w.Dst.Addr())
	w.out.Fate = Forward
	var hooks []place
	switch {
	case w.In == "" && local:
		w.out.Fate = Here
		// It comes in again by loopback.
		hooks = []place{{"filter", "OUTPUT"}, {"nat", "POSTROUTING"}, {"mangle", "PREROUTING"}, {"filter", "INPUT"}}
	case w.In == "":
		hooks = []place{{"filter", "OUTPUT"}, {"nat", "POSTROUTING"}}
	case local:
		w.out.Fate = Here
		hooks = []place{{"filter", "INPUT"}}
	default:
		hooks = []place{{"filter", "FORWARD"}, {"nat", "POSTROUTING"}}
	}
	w.last(hooks, end)
}

func (w walk) last(hooks []place, end func(walk)) {
	if len(hooks) == 0 {
		end(w)
		return
	}
	w.table(hooks[0], func(w walk) { w.last(hooks[1:], end) }, end)
}

// table takes the walk through one chain of the kernel.
func (w walk) table(at place, next, end func(walk)) {
	w.hook = at.chain
	if (at.chain == "PREROUTING" || at.chain == "INPUT") && w.In == "" {
		w.In = "lo"
	}
	c := w.rules.chains[at]
	if c == nil {
		next(w)
		return
	}
	w.chain(at, 0, func(w walk, r result) {
		switch {
		case r == stop:
			end(w)
		case r == goOn && c.policy == "DROP":
			w.out.Fate = Drop
			w.step(at.table, "policy of "+at.chain)
			end(w)
		default:
			next(w)
		}
	})
}

// chain takes the walk through a chain, and calls done for each way out of it.
func (w walk) chain(at place, depth int, done func(walk, result)) {
	if depth > maxDepth {
		w.out.Fate = Endless
		done(w, stop)
		return
	}
	c := w.rules.chains[at]
	if c == nil {
		w.note("there is no chain " + at.chain)
		done(w, goOn)
		return
	}
	w.from(at, c.rules, depth, done)
}

// from takes the walk through the rules that are left of a chain.
func (w walk) from(at place, rules []rule, depth int, done func(walk, result)) {
	for i := range rules {
		r := &rules[i]
		chance := w.matches(r)
		if chance == 0 {
			continue
		}
		rest := rules[i+1:]
		hit := w.fork(chance)
		hit.step(at.table, r.text)
		hit.target(at, r, depth, func(w walk, res result, over bool) {
			if over {
				done(w, res)
			} else {
				w.from(at, rest, depth, done)
			}
		})
		if chance == 1 {
			return
		}
		w = w.fork(1 - chance)
	}
	done(w, goOn)
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

// target applies a rule. done is called with whether the chain of the rule has ended.
func (w walk) target(at place, r *rule, depth int, done func(w walk, res result, over bool)) {
	switch r.target {
	case "":
		done(w, goOn, false)
	case "ACCEPT":
		done(w, accept, true)
	case "RETURN":
		done(w, goOn, true)
	case "DROP":
		w.out.Fate = Drop
		done(w, stop, true)
	case "REJECT":
		w.out.Fate, w.out.With = Reject, r.argument("--reject-with")
		done(w, stop, true)
	case "DNAT":
		if to, ok := parseTarget(r.argument("--to-destination"), w.Dst); ok {
			w.Dst, w.dnat = to, true
		} else {
			w.note("cannot read the target of: " + r.text)
		}
		done(w, accept, true)
	case "REDIRECT":
		w.redirect(r)
		done(w, accept, true)
	case "MASQUERADE", "SNAT":
		w.out.Masqueraded = true
		done(w, accept, true)
	case "MARK":
		w.mark(r)
		done(w, goOn, false)
	case "LOG", "NFLOG", "CONNMARK", "TRACE", "SET", "CLASSIFY", "CHECKSUM", "TCPMSS", "CT":
		done(w, goOn, false)
	default:
		if w.rules.chains[place{at.table, r.target}] == nil {
			w.note("unknown target " + r.target)
			done(w, goOn, false)
			return
		}
		w.chain(place{at.table, r.target}, depth+1, func(w walk, res result) {
			done(w, res, res != goOn || r.goTo)
		})
	}
}

// redirect sends the packet to a port of this node.
func (w *walk) redirect(r *rule) {
	to := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if w.Dst.Addr().Is6() {
		to = netip.IPv6Loopback()
	}
	if w.In != "" { // to the address of the interface, whichever that is
		for _, a := range w.node.Addresses {
			if a.Is6() == w.Dst.Addr().Is6() {
				to = a
				break
			}
		}
	}
	port := w.Dst.Port()
	if n, err := strconv.ParseUint(r.argument("--to-ports"), 10, 16); err == nil {
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
