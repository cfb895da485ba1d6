package netfilter

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Jump is a rule in a chain of the kernel that leads to a chain of ours.
type Jump struct {
	Table, From, To string
	NewOnly         bool // only the first packet of a flow; nat sees no other anyway
	Comment         string
	First           bool // before all other rules that lead to chains of Sluice; the same for all of one chain
}

// String returns a jump without a lease.
func (j Jump) String() string { return j.under(nil) }

// under returns the jump as input of iptables-restore, without "-I" and the chain. lease may be nil.
func (j Jump) under(lease *Lease) string {
	match := ""
	if j.NewOnly {
		match = "-m conntrack --ctstate NEW "
	}
	if lease != nil {
		match += lease.match()
	}
	return fmt.Sprintf("%s-m comment --comment %q -j %s", match, j.Comment, j.To)
}

func (j Jump) place() Place { return Place{j.Table, j.From} }

// jumpsAt returns those of list that are in one chain of the kernel.
func jumpsAt(list []Jump, at Place) []Jump {
	return slices.DeleteFunc(slices.Clone(list), func(j Jump) bool { return j.place() != at })
}

// inPlace reports whether a chain of the kernel has each of some jumps once, where it has to be, and no other rule
// that leads to a chain of ours. Rules of other programs may come before: Felix of Calico writes its rules anew until
// they do, so that two who insist would never be done.
func (l *Layout) inPlace(at Place, rules []Rule, jumps []Jump) bool {
	missing, first := make(map[string]bool, len(jumps)), false
	for _, j := range jumps {
		missing[j.To], first = true, j.First
	}
	for _, r := range rules {
		if missing[r.Target] {
			delete(missing, r.Target)
			continue
		}
		if l.Own(at.Table, r.Target) || first && len(missing) > 0 && strings.HasPrefix(r.Target, l.Prefix) {
			return false
		}
	}
	return len(missing) == 0
}

// intact reports whether a chain of the kernel has jumps in place, those that were written and
// not others that lead to the same chains.
func (r *Ruleset) intact(at Place, rules []Rule, jumps []Jump) bool {
	return r.layout.inPlace(at, rules, jumps) && !slices.ContainsFunc(rules, func(x Rule) bool {
		return r.layout.Own(at.Table, x.Target) && !slices.Contains(r.held.others[at], x)
	})
}

// moves returns the input of iptables-restore that puts jumps where they have to be, and
// deletes all other rules in others' chains that lead to ours, if now is what is there;
// nil if all chains are good.
func (r *Ruleset) moves(now held, jumps []Jump, good func(Place, []Rule, []Jump) bool) []byte {
	places := slices.Collect(maps.Keys(now.others))
	for _, j := range jumps {
		places = append(places, j.place())
	}
	slices.SortFunc(places, Place.compare)
	var b bytes.Buffer
	for _, at := range slices.Compact(places) {
		rules, ours := now.others[at], jumpsAt(jumps, at)
		if good(at, rules, ours) {
			continue
		}
		fmt.Fprintf(&b, "*%s\n", at.Table)
		// By number, the last first: another program may have written one in another way.
		for i, x := range slices.Backward(rules) {
			if r.layout.Own(at.Table, x.Target) {
				fmt.Fprintf(&b, "-D %s %d\n", at.Chain, i+1)
			}
		}
		n := 1
		for _, x := range rules {
			if !strings.HasPrefix(x.Target, r.layout.Prefix) || len(ours) > 0 && ours[0].First {
				break
			}
			if !r.layout.Own(at.Table, x.Target) {
				n++
			}
		}
		for i, j := range ours {
			fmt.Fprintf(&b, "-I %s %d %s\n", at.Chain, n+i, j.under(r.layout.Lease))
		}
		b.WriteString("COMMIT\n")
	}
	return b.Bytes()
}
