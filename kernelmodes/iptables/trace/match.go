package trace

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-lb/sluice/internal/netfilter"
)

// matches returns how likely it is that a packet matches a rule.
func (w *walk) matches(r *rule) float64 {
	chance := 1.0
	for i := range r.conditions {
		o := &r.conditions[i]
		switch is, known := w.condition(r, o); {
		case !known:
			w.note("unknown match " + strings.TrimSpace(o.match+" "+o.name))
			return 0
		case is == o.not:
			return 0
		}
		if o.name == "--probability" {
			chance *= o.chance
		}
	}
	return chance
}

// condition reports whether one option of a rule holds, and whether that is known.
func (w *walk) condition(r *rule, o *option) (is, known bool) {
	switch o.name {
	case "-p":
		return o.value() == w.Protocol || o.value() == "all", true
	case "-s":
		return o.holds(w.Src.Addr()), true
	case "-d":
		return o.holds(w.Dst.Addr()), true
	case "-i":
		return w.hook != "OUTPUT" && w.hook != "POSTROUTING" && named(w.In, o.value()), true
	case "-o":
		return false, w.hook == "PREROUTING" || w.hook == "INPUT" // which way it will leave is not known
	case "--dport", "--dports":
		return inPorts(w.Dst.Port(), o.value()), true
	case "--sport", "--sports":
		return inPorts(w.Src.Port(), o.value()), true
	case "--src-type":
		return w.isLocal(w.Src.Addr()), o.value() == "LOCAL"
	case "--dst-type":
		return w.isLocal(w.Dst.Addr()), o.value() == "LOCAL"
	case "--ctstate":
		return w.state(o.value()), true
	case "--mark":
		value, mask := parseMark(o.value())
		return w.Mark&mask == value, o.match == "mark"
	case "--match-set":
		if netfilter.IsLease(o.value()) {
			return true, true // it is renewed
		}
		if w.node.InSet == nil || len(o.values) < 2 {
			return false, false
		}
		return w.node.InSet(o.values[0], o.values[1], w.Packet), true
	case "--rcheck", "--update":
		list := cmp.Or(valueOf(r.conditions, "--name"), "DEFAULT")
		return w.node.Recent != nil && w.node.Recent(list, w.Src.Addr()), true
	case "--bytecode":
		return w.Src.Addr() == w.Dst.Addr(), o.value() == SameAddress(w.Dst.Addr().Is6())
	case "--physdev-is-in", "--physdev-is-bridged", "--physdev-is-out":
		return false, true // what a bridge forwards is not walked
	case "--comment", "--set", "--name", "--seconds", "--reap", "--mask", "--rsource", "--mode", "--probability":
		return !o.not, true // they say how, or say nothing
	}
	return false, false
}

// named reports whether an interface has the name, of which only the beginning is given
// if it ends with "+".
func named(name, text string) bool {
	if first, ok := strings.CutSuffix(text, "+"); ok {
		return strings.HasPrefix(name, first)
	}
	return name == text
}

// state reports whether the first packet of a flow has one of the states.
func (w *walk) state(list string) bool {
	states := strings.Split(list, ",")
	return slices.Contains(states, "NEW") || w.dnat && slices.Contains(states, "DNAT")
}

// SameAddress returns the program for the match bpf that is true of packets whose source
// and destination are the same address; it is the only one that is understood here. It
// reads the addresses where the header of IP has them (RFC 791, RFC 8200), word by word.
func SameAddress(ipv6 bool) string {
	src, dst, words := 12, 16, 1
	if ipv6 {
		src, dst, words = 8, 24, 4
	}
	const load, toX, ifEqual, end = 0x20, 0x07, 0x1d, 0x06 // linux/bpf_common.h
	n := 4*words + 2
	b := strconv.Itoa(n)
	for i := range words {
		unequal := n - 1 - 4*(i+1) // instructions to the last one
		b += fmt.Sprintf(",%d 0 0 %d,%d 0 0 0,%d 0 0 %d,%d 0 %d 0", load, src+4*i, toX, load, dst+4*i, ifEqual, unequal)
	}
	return b + fmt.Sprintf(",%d 0 0 65535,%d 0 0 0", end, end)
}
