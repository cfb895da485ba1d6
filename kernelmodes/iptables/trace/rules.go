package trace

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/sluice-lb/sluice/internal/netfilter"
)

// Rules are the rules of one address family. They are not changed once parsed.
type Rules struct {
	chains map[place]*chain
}

type place struct{ table, chain string }

type chain struct {
	policy string // ACCEPT or DROP; empty for chains that are jumped to
	rules  []rule
}

// rule is one rule, split into its conditions and its target.
type rule struct {
	text       string
	conditions []option
	target     string
	goTo       bool // -g: the chain that led here is not gone back to
	arguments  []option
}

// option is one flag of a rule, as --dport, with what follows it.
type option struct {
	name   string
	not    bool
	values []string
	match  string // the -m before it
}

// value returns the first value, empty if there is none.
func (o option) value() string {
	if len(o.values) == 0 {
		return ""
	}
	return o.values[0]
}

// Parse reads the output of iptables-save or ip6tables-save, or the input of
// iptables-restore if it only declares chains and appends rules. The error names the
// first line that is neither.
func Parse(save string) (*Rules, error) {
	r := &Rules{chains: make(map[place]*chain)}
	table, n := "", 0
	for line := range strings.Lines(save) {
		n++
		line = strings.TrimSpace(line)
		words := netfilter.Words(line)
		switch {
		case line == "" || line[0] == '#' || line == "COMMIT":
		case line[0] == '*':
			table = line[1:]
		case line[0] == ':' && len(words) > 1:
			c := &chain{}
			if words[1] != "-" {
				c.policy = words[1]
			}
			r.chains[place{table, words[0][1:]}] = c
		case words[0] == "-A" && len(words) > 2:
			at := place{table, words[1]}
			if r.chains[at] == nil {
				r.chains[at] = &chain{}
			}
			r.chains[at].rules = append(r.chains[at].rules, parseRule(line, words[2:]))
		default:
			return nil, fmt.Errorf("parse iptables rules: line %d is neither a chain nor a rule: %q", n, line)
		}
	}
	return r, nil
}

func parseRule(text string, words []string) rule {
	r := rule{text: text}
	match, not := "", false
	for i := 0; i < len(words); {
		word := words[i]
		i++
		if word == "!" {
			not = true
			continue
		}
		o := option{name: word, not: not, match: match}
		not = false
		isValue := func(w string) bool {
			return w != "!" && (!strings.HasPrefix(w, "-") || word == "--comment" && len(o.values) == 0)
		}
		for i < len(words) && isValue(words[i]) {
			o.values = append(o.values, words[i])
			i++
		}
		switch {
		case word == "-m":
			match = o.value()
		case word == "-j" || word == "-g":
			r.target, r.goTo = o.value(), word == "-g"
		case r.target != "":
			r.arguments = append(r.arguments, o)
		default:
			r.conditions = append(r.conditions, o)
		}
	}
	return r
}

// Destination is what rules match of where packets go to. What they do not match is zero.
type Destination struct {
	Protocol string
	Addr     netip.AddrPort
}

// Destinations returns those of all rules: one for each port that a rule lists.
func (r *Rules) Destinations() (out []Destination) {
	for _, c := range r.chains {
		for i := range c.rules {
			var d Destination
			var addr netip.Addr
			ports := []string{"0"}
			for _, o := range c.rules[i].conditions {
				switch {
				case o.not:
				case o.name == "-p":
					d.Protocol = o.value()
				case o.name == "-d":
					if p, err := netip.ParsePrefix(o.value()); err == nil && p.IsSingleIP() {
						addr = p.Addr()
					}
				case o.name == "--dport" || o.name == "--dports":
					ports = strings.Split(o.value(), ",")
				}
			}
			for _, text := range ports {
				port, _ := strconv.ParseUint(text, 10, 16) // a range is none
				d.Addr = netip.AddrPortFrom(addr, uint16(port))
				if d.Addr != (netip.AddrPort{}) {
					out = append(out, d)
				}
			}
		}
	}
	return out
}

// argument returns the first value of an option of the target.
func (r *rule) argument(name string) string {
	for _, o := range r.arguments {
		if o.name == name {
			return o.value()
		}
	}
	return ""
}

// inNet reports whether a is in an address, a prefix, or an address with a mask of any
// bits.
func inNet(a netip.Addr, text string) bool {
	addr, mask, _ := strings.Cut(text, "/")
	base, err := netip.ParseAddr(addr)
	if err != nil || base.Is4() != a.Is4() {
		return false
	}
	bits := make([]byte, base.BitLen()/8)
	if n, err := strconv.Atoi(mask); err == nil || mask == "" {
		if mask == "" {
			n = base.BitLen()
		}
		for i := range bits {
			bits[i] = ^byte(0xff >> min(8, max(0, n-8*i)))
		}
	} else if m, err := netip.ParseAddr(mask); err == nil && m.BitLen() == base.BitLen() {
		copy(bits, m.AsSlice())
	} else {
		return false
	}
	x, y := a.AsSlice(), base.AsSlice()
	for i, b := range bits {
		if x[i]&b != y[i]&b {
			return false
		}
	}
	return true
}

// inPorts reports whether a port is in a list of ports and ranges.
func inPorts(port uint16, text string) bool {
	for part := range strings.SplitSeq(text, ",") {
		first, last, ok := strings.Cut(part, ":")
		if !ok {
			last = first
		}
		a, err1 := strconv.ParseUint(first, 10, 16)
		b, err2 := strconv.ParseUint(last, 10, 16)
		if err1 == nil && err2 == nil && uint64(port) >= a && uint64(port) <= b {
			return true
		}
	}
	return false
}
