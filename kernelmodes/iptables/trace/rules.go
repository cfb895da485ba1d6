package trace

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
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
	policy string // ACCEPT or DROP; "-" or empty for chains that are jumped to
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

	// What values say, read once for all packets. A mask of any bits is no prefix, and not valid.
	prefix netip.Prefix
	chance float64 // 1 if they are no probability
}

// value returns the first value, empty if there is none.
func (o option) value() string {
	if len(o.values) == 0 {
		return ""
	}
	return o.values[0]
}

// read reads what packet after packet asks for.
func (o *option) read() {
	o.chance = 1
	switch o.name {
	case "-s", "-d":
		o.prefix, _ = netip.ParsePrefix(o.value())
	case "--probability":
		if p, err := strconv.ParseFloat(o.value(), 64); err == nil {
			o.chance = min(max(p, 0), 1)
		}
	}
}

// holds reports whether a is in an address, a prefix, or an address with a mask of any
// bits.
func (o *option) holds(a netip.Addr) bool {
	if o.prefix.IsValid() {
		return o.prefix.Contains(a)
	}
	return inMask(a, o.value())
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
			r.chains[place{table, words[0][1:]}] = &chain{policy: words[1]}
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
		o.read()
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

// valueOf returns the first value of an option, empty if it is not among them.
func valueOf(options []option, name string) string {
	i := slices.IndexFunc(options, func(o option) bool { return o.name == name })
	if i < 0 {
		return ""
	}
	return options[i].value()
}

// inMask reports whether a is an address, or in one with a mask of any bits.
func inMask(a netip.Addr, text string) bool {
	addr, mask, masked := strings.Cut(text, "/")
	base, _ := netip.ParseAddr(addr)
	if !masked {
		return a == base
	}
	bits, _ := netip.ParseAddr(mask)
	if a.BitLen() != base.BitLen() || a.BitLen() != bits.BitLen() {
		return false
	}
	x, y := a.AsSlice(), base.AsSlice()
	for i, b := range bits.AsSlice() {
		if x[i]&b != y[i]&b {
			return false
		}
	}
	return true
}

// inPorts reports whether a port is in a list of ports and ranges.
func inPorts(port uint16, text string) bool {
	for part := range strings.SplitSeq(text, ",") {
		first, last, _ := strings.Cut(part, ":")
		a, err1 := strconv.ParseUint(first, 10, 16)
		b, err2 := strconv.ParseUint(cmp.Or(last, first), 10, 16)
		if err1 == nil && err2 == nil && uint64(port) >= a && uint64(port) <= b {
			return true
		}
	}
	return false
}
