package nft

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// TestReplaced: another process makes a table be its own, whatever is in it, and base chains stay that it has as well.
func TestReplaced(t *testing.T) {
	eachFamily(t, func(t *testing.T, x *Table) {
		for _, step := range []struct {
			name   string
			change func(*Table)
			stays  bool
		}{
			{"the same", func(*Table) {}, true},
			{"with another set, map and chain", func(o *Table) {
				o.AddSet(Set{Name: "other", Key: []Field{Port}})
				o.AddSet(Set{Name: "others", Key: []Field{Port}, Verdicts: true})
				o.SetChain("other", nil, []Rule{NewRule(x.IPv6).In("other", DestinationPort).Drop().Rule("")})
				o.SetChain("leads", nil, []Rule{NewRule(x.IPv6).Goto("others", DestinationPort).Rule("")})
				o.Add("other", Element{Key: Key(uint16(53))}, 1)
				o.Add("others", Element{Key: Key(uint16(53)), Data: "other"}, 1)
			}, true},
			{"without them", func(*Table) {}, true},
			{"with a set of another kind", func(o *Table) { o.AddSet(Set{Name: "other", Key: []Field{Mark}}) }, true},
			{"with another base chain", func(o *Table) {
				hook := &Hook{Type: "filter", Number: unix.NF_INET_LOCAL_IN}
				o.SetChain("base", hook, []Rule{NewRule(x.IPv6).Accept().Rule("")})
			}, true},
			{"without it", func(*Table) {}, false},
		} {
			o := example(x.IPv6)
			step.change(o)
			write(t, o)
			verify(t, o, true)
			if stays := o.handle == x.handle; stays != step.stays {
				t.Errorf("%s: the table stays %v, want %v", step.name, stays, step.stays)
			}
			if n := o.Counters.Failures.Load(); n > 0 {
				t.Errorf("%s: the kernel has refused %d transactions", step.name, n)
			}
			old := o.old()
			if old == nil {
				t.Fatalf("%s: what is in the table is not known", step.name)
			}
			for name := range old.sets {
				if !slices.ContainsFunc(o.sets, func(s *set) bool { return s.Name == name }) {
					t.Errorf("%s: set %s is still there", step.name, name)
				}
			}
			x = o
		}
	})
}
