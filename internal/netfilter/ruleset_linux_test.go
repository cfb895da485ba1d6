package netfilter

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestWriteWhole: all that a ruleset has is in the kernel after one iptables-restore, and
// nothing is written when nothing changed.
func TestWriteWhole(t *testing.T) {
	eachVariant(t, func(t *testing.T, l *lab) {
		if l.fill(); l.Known() || l.verify() {
			t.Error("known before the first Write")
		}
		if n := l.write(); n != 1 {
			t.Errorf("%d runs of iptables-restore, want 1", n)
		}
		l.want("mangle", l.targets(inMangle.Table, inMangle.Chain), []string{"RETURN", "DROP"})
		l.want("nat", l.targets(inNat.Table, inNat.Chain), []string{"REDIRECT"})
		l.want("PREROUTING of mangle", l.targets("mangle", "PREROUTING"), []string{inMangle.Chain})
		l.want("PREROUTING of nat", l.targets("nat", "PREROUTING"), []string{inNat.Chain})
		l.want("OUTPUT of filter", l.targets("filter", "OUTPUT"), []string{inFilter.Chain})
		for set, n := range map[Set]int{inside: 1, screens: 1, serves: 5} {
			set.IPv6 = l.IPv6
			if have, err := set.Read(); err != nil || len(have) != n || !l.Members(set.Name).Match(have) {
				t.Errorf("set %s: %v, %v, want %d members", set.Name, have, err, n)
			}
		}
		if !l.Known() || !l.verify() {
			t.Error("not verified after Write")
		}
		ops := l.counters.SetOps.Load()
		if n := l.write(); n != 0 || l.counters.SetOps.Load() != ops {
			t.Errorf("%d runs of iptables-restore and %d set operations without a change", n, l.counters.SetOps.Load()-ops)
		}
		if n := l.layout.Counters.Rules()["filter"]; n != 2 {
			t.Errorf("Rules(filter) = %d, want 2", n)
		}
	})
}

// TestWriteEdits: an edit writes what it changes and leaves the rest alone.
func TestWriteEdits(t *testing.T) {
	eachVariant(t, func(t *testing.T, l *lab) {
		l.fill()
		for i := range 8 {
			l.AddRule(parted, fmt.Sprintf("-p tcp -m tcp --dport %d -j RETURN", i+1))
		}
		l.write()
		port := func(n int) string { return fmt.Sprintf("-p tcp -m tcp --dport %d -j RETURN", n) }
		for _, step := range []struct {
			name     string
			edit     func()
			want     []string
			restores uint64
			script   string // what it must contain
			not      string // and what not
		}{
			{"a rule more", func() { l.AddRule(parted, port(9)) },
				[]string{port(1), port(2), port(3), port(4), port(5), port(6), port(7), port(8), port(9)}, 1, "-A TEST-OUR-PART",
				"-D "},
			{"a rule exchanged", func() { l.DeleteRule(parted, port(2)); l.AddRule(parted, port(10)) },
				[]string{port(1), port(3), port(4), port(5), port(6), port(7), port(8), port(9), port(10)}, 1, "-D TEST-OUR-PART",
				":TEST"},
			{"a rule deleted and added", func() { l.DeleteRule(parted, port(10)); l.AddRule(parted, port(10)) },
				[]string{port(1), port(3), port(4), port(5), port(6), port(7), port(8), port(9), port(10)}, 0, "", "TEST"},
			{"most rules deleted", func() {
				for i := range 8 {
					l.DeleteRule(parted, port(i+1))
				}
			}, []string{port(9), port(10)}, 1, ":TEST-OUR-PART", "-D "},
			{"the order changed", func() { l.SetChain(parted, []string{port(10), port(9)}) }, []string{port(10), port(9)}, 1,
				":TEST-OUR-PART", "-D "},
			{"all made anew", func() { l.Clear(); l.fill(); l.SetChain(parted, []string{port(10), port(9)}) },
				[]string{port(10), port(9)}, 0, "", "TEST"},
		} {
			step.edit()
			text, _ := l.script(false)
			if n := l.write(); n != step.restores {
				t.Errorf("%s: %d runs of iptables-restore, want %d", step.name, n, step.restores)
			}
			if !strings.Contains(string(text), step.script) || strings.Contains(string(text), step.not) ||
				strings.Contains(string(text), "*mangle") {
				t.Errorf("%s: writes\n%s", step.name, text)
			}
			got := l.rules(parted)
			if !slices.Equal(got, step.want) {
				t.Errorf("%s: rules %q, want %q", step.name, got, step.want)
			}
			l.intact(step.name)
		}
		l.DeleteChain(parted)
		l.write()
		if save := l.run("IPT-save -t nat"); strings.Contains(save, parted.Chain) {
			t.Errorf("the chain that was deleted is there:\n%s", save)
		}
		l.intact("after a chain was deleted")
	})
}

// TestBuckets: a bucket and the rule that leads there come with its first rule, and go
// with its last.
func TestBuckets(t *testing.T) {
	eachVariant(t, func(t *testing.T, l *lab) {
		b := Bucket{Table: "nat", Chain: "TEST-OUR-PART-1", From: parted.Chain, Lead: "-p udp -j TEST-OUR-PART-1"}
		at := Place{b.Table, b.Chain}
		l.fill()
		l.SetChain(parted, nil)
		l.write()
		l.AddToBucket(b, "-p udp -m udp --dport 53 -j RETURN")
		l.AddToBucket(b, "-p udp -m udp --dport 54 -j RETURN")
		l.write()
		l.want("lead", l.rules(parted), []string{b.Lead})
		l.want("bucket", l.targets(at.Table, at.Chain), []string{"RETURN", "RETURN"})
		l.DeleteFromBucket(b, "-p udp -m udp --dport 53 -j RETURN")
		l.write()
		l.want("bucket", l.rules(at), []string{"-p udp -m udp --dport 54 -j RETURN"})
		l.DeleteFromBucket(b, "-p udp -m udp --dport 54 -j RETURN")
		if n := l.write(); n != 1 {
			t.Errorf("%d runs of iptables-restore, want 1", n)
		}
		l.want("lead", l.rules(parted), nil)
		if save := l.run("IPT-save -t nat"); strings.Contains(save, b.Chain) || l.Has(at) {
			t.Errorf("the bucket is there without rules:\n%s", save)
		}
		l.intact("at the end")
	})
}

// TestRestart: another process takes over what it finds, writes what it wants, and
// removes what it does not know.
func TestRestart(t *testing.T) {
	eachVariant(t, func(t *testing.T, l *lab) {
		l.fill()
		l.AddRule(parted, "-p tcp -j RETURN")
		l.write()
		l.run("ipset add TEST4-SERVE " + l.addr(77).String() + ",tcp:80")
		jump := l.rules(Place{"nat", "PREROUTING"})
		l.restart()
		l.fill()
		if n := l.write(); n != 1 {
			t.Errorf("%d runs of iptables-restore, want 1", n)
		}
		l.want("jump", l.rules(Place{"nat", "PREROUTING"}), jump)
		if save := l.run("IPT-save -t nat"); strings.Contains(save, parted.Chain) {
			t.Errorf("a chain of the process before is there:\n%s", save)
		}
		if out := l.run("ipset list TEST4-SERVE"); strings.Contains(out, l.addr(77).String()+",") {
			t.Errorf("a member of the process before is there:\n%s", out)
		}
		l.intact("at the end")
	})
}

// TestOuter: what an outer table answers is there before and after the other tables.
func TestOuter(t *testing.T) {
	r := NewRuleset(nil, testLayout(false, nil))
	one, two := "-d 192.0.2.1/32 -j REJECT", "-d 192.0.2.2/32 -j REJECT"
	r.AddRule(inFilter, one)
	r.AddRule(inNat, "-d 192.0.2.2/32 -j ACCEPT")
	r.settle()
	r.DeleteRule(inFilter, one)
	r.AddRule(inFilter, two)
	r.DeleteRule(inNat, "-d 192.0.2.2/32 -j ACCEPT")
	r.AddRule(inNat, "-d 192.0.2.1/32 -j ACCEPT")
	text, _ := r.script(false)
	var order []string
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "*") || strings.HasPrefix(line, "-") {
			order = append(order, strings.TrimSpace(line))
		}
	}
	want := []string{"*filter", "-A TEST-OUR-REFUSE " + two, "*nat", "-A TEST-OUR-STEER -d 192.0.2.1/32 -j ACCEPT",
		"*filter", "-D TEST-OUR-REFUSE " + one}
	if !slices.Equal(order, want) {
		t.Errorf("order of writing %q, want %q", order, want)
	}
}

// TestFailure: an error leaves the ruleset unknown, and the next Write writes everything.
// What another program does to a chain between two writes is repaired by the second one.
func TestFailure(t *testing.T) {
	eachVariant(t, func(t *testing.T, l *lab) {
		l.fill()
		for i := range 8 {
			l.AddRule(parted, fmt.Sprintf("-p tcp -m tcp --dport %d -j RETURN", i+1))
		}
		l.write()
		l.SetChain(inFilter, []string{"--no-such-match -j RETURN"})
		err := l.Write(t.Context(), nil)
		if err == nil || !strings.Contains(err.Error(), "no-such-match") || l.Known() || l.counters.Failures.Load() == 0 {
			t.Errorf("Write of nonsense = %v, known %v", err, l.Known())
		}
		l.SetChain(inFilter, []string{"-p tcp -j RETURN"})
		l.write()
		l.intact("after an error")
		l.run("IPT -t nat -F " + parted.Chain)
		l.DeleteRule(parted, "-p tcp -m tcp --dport 2 -j RETURN")
		l.write()
		if got := l.rules(parted); len(got) != 7 {
			t.Errorf("rules %q after another program had flushed the chain, want 7", got)
		}
		failed := errors.New("failed between")
		if err := l.Write(t.Context(), func() error { return failed }); !errors.Is(err, failed) || l.Known() {
			t.Errorf("Write = %v, known %v, want what between returned", err, l.Known())
		}
	})
}

// TestBetween: members that are added are there before between is called, and those that
// go still are.
func TestBetween(t *testing.T) {
	eachVariant(t, func(t *testing.T, l *lab) {
		l.fillAndWrite()
		l.Member(serves.Name, l.member(0), -1)
		l.Member(serves.Name, l.member(7), 1)
		var out string
		if err := l.Write(t.Context(), func() error {
			out = l.run("ipset list TEST4-SERVE")
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		for _, i := range []int{0, 7} {
			if !strings.Contains(out, l.addr(i).String()+",") {
				t.Errorf("%s is not there in between:\n%s", l.addr(i), out)
			}
		}
		if out = l.run("ipset list TEST4-SERVE"); strings.Contains(out, l.addr(0).String()+",") {
			t.Errorf("%s stays:\n%s", l.addr(0), out)
		}
	})
}

// TestInner: sets that the caller changes itself within between, whose members carry marks: one
// that gets another mark is overwritten, and not deleted with its old one.
func TestInner(t *testing.T) {
	eachVariant(t, func(_ *testing.T, l *lab) {
		set := Set{Name: "test-marks-" + Program(l.IPv6), Type: HashIPPort, IPv6: l.IPv6, Marks: true}
		layout := testLayout(l.IPv6, nil)
		layout.Inner = []Set{set}
		r := NewRuleset(l.program, layout)
		write := func(want ...Member) {
			l.Helper()
			if err := r.Write(l.Context(), func() error { return errors.Join(r.Grow(set), r.Shrink(set)) }); err != nil {
				l.Fatal(err)
			}
			have, err := set.Read()
			if err != nil {
				l.Fatal(err)
			}
			if !slices.Equal(have, want) {
				l.Errorf("the set has %v, want %v", have, want)
			}
			var found []Member
			r.Members(set.Name).Each(func(m Member, wanted, present bool) {
				if !wanted || !present {
					l.Errorf("%v is wanted %v, present %v", m, wanted, present)
				}
				found = append(found, m)
			})
			if len(found) != len(want) {
				l.Errorf("there are %v, want %v", found, want)
			}
		}
		one, other, two := l.member(1), l.member(1), l.member(2)
		one.Mark, other.Mark, two.Mark = 0x10000, 0x20000, 0x30000
		r.Member(set.Name, one, 1)
		r.Member(set.Name, two, 1)
		write(one, two)
		r.Member(set.Name, one, -1)
		r.Member(set.Name, two, -1)
		r.Member(set.Name, other, 1)
		write(other)
	})
}
