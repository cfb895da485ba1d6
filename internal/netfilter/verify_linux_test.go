package netfilter

import (
	"slices"
	"strings"
	"testing"
)

// TestVerify: what other programs do to a ruleset is found, and repaired by the next
// Write; what they do elsewhere is left alone.
func TestVerify(t *testing.T) {
	eachVariant(t, func(t *testing.T, l *lab) {
		l.fill()
		l.AddRule(parted, "-p tcp -j RETURN")
		l.AddRule(parted, "-p udp -j RETURN")
		l.write()
		want := l.state()
		member := l.addr(1).String() + ",tcp:80"
		for _, damage := range []string{
			"IPT -t nat -F",
			"IPT -t mangle -F PREROUTING",
			"IPT -t nat -F " + parted.Chain,
			"IPT -t nat -D " + parted.Chain + " 1",
			"IPT -t nat -A " + parted.Chain + " -j ACCEPT",
			"IPT -t nat -R " + parted.Chain + " 2 -p sctp -j RETURN",
			"IPT -t nat -F " + parted.Chain + "; IPT -t nat -X " + parted.Chain,
			"IPT -t nat -N TEST-OUR-LEFT",
			"IPT -t nat -R PREROUTING 1 -p tcp -j " + inNat.Chain,
			"IPT -t nat -A PREROUTING -j " + inNat.Chain,
			"IPT -t nat -A POSTROUTING -j " + parted.Chain,
			"IPT -t nat -N THEIRS; IPT -t nat -A THEIRS -j " + parted.Chain,
			"IPT -D OUTPUT 1",
			"ipset flush TEST4-SERVE",
			"ipset del TEST4-SCREEN " + member,
			"ipset add TEST4-SERVE " + l.addr(77).String() + ",tcp:80",
			"IPT -t mangle -F; IPT -t mangle -X; for i in 1 2 3 4 5 6 7 8 9; do ipset destroy TEST4-SCREEN && exit; sleep 0.1; done",
		} {
			if !l.verify() {
				t.Fatalf("not intact before %s", damage)
			}
			l.run(damage)
			if l.verify() || l.Known() {
				t.Errorf("not found: %s", damage)
			}
			l.write()
			l.intact(damage)
			l.run("IPT -t nat -F THEIRS; IPT -t nat -X THEIRS; true")
			if got := l.state(); got != want {
				t.Fatalf("after %s the kernel holds\n%s\nwant\n%s", damage, got, want)
			}
		}
		theirs := "IPT -t nat -N THEIRS; IPT -t nat -A THEIRS -j RETURN; IPT -t nat -A PREROUTING -j THEIRS; IPT -I OUTPUT -j ACCEPT; ipset create theirs hash:ip"
		l.run(theirs)
		l.intact(theirs)
		l.SetChain(parted, nil)
		l.write()
		if save := l.run("IPT-save"); !strings.Contains(save, "-A PREROUTING -j THEIRS") ||
			!strings.Contains(save, "-A OUTPUT -j ACCEPT") {
			t.Errorf("rules of another program are gone:\n%s", save)
		}
	})
}

// state returns the chains of the ruleset with the jumps to them, and the sets, in an
// order that is always the same.
func (l *lab) state() string {
	l.Helper()
	var out []string
	for line := range strings.Lines(l.run("IPT-save; ipset save")) {
		if line, _, _ = strings.Cut(line, " ["); strings.Contains(line, "TEST") &&
			!strings.Contains(line, MarkChain("TEST-")) {
			out = append(out, strings.TrimSpace(line))
		}
	}
	// Rules keep their order within a chain; chains, and members, have none.
	slices.SortStableFunc(out, func(a, b string) int {
		key := func(s string) string {
			if strings.HasPrefix(s, "-A ") {
				return strings.Fields(s)[1]
			}
			return s
		}
		return strings.Compare(key(a), key(b))
	})
	return strings.Join(out, "\n")
}

// TestJumpPositions: a jump is put before the rules of other programs, which may be put before it later.
func TestJumpPositions(t *testing.T) {
	eachVariant(t, func(t *testing.T, l *lab) {
		l.run("IPT -t nat -N TEST-SIBLING; IPT -N TEST-SIBLING; IPT -t mangle -N TEST-SIBLING")
		for _, at := range []string{"mangle -A PREROUTING", "nat -A PREROUTING", "filter -A OUTPUT"} {
			l.run("IPT -t " + at + " -j TEST-SIBLING; IPT -t " + at + " -p tcp -j ACCEPT")
		}
		l.fillAndWrite()
		const sibling = "TEST-SIBLING"
		l.want("First", l.targets("mangle", "PREROUTING"), []string{inMangle.Chain, sibling, "ACCEPT"})
		l.want("not first", l.targets("nat", "PREROUTING"), []string{sibling, inNat.Chain, "ACCEPT"})
		l.want("not first", l.targets("filter", "OUTPUT"), []string{sibling, inFilter.Chain, "ACCEPT"})
		for rule, good := range map[string]map[string]bool{
			sibling:  {"mangle": false, "nat": true, "filter": true},
			"RETURN": {"mangle": true, "nat": true, "filter": true},
		} {
			for table, chain := range map[string]string{"mangle": "PREROUTING", "nat": "PREROUTING", "filter": "OUTPUT"} {
				l.run("IPT -t " + table + " -I " + chain + " -p udp -j " + rule)
				if got := l.verify(); got != good[table] {
					t.Errorf("%s before the jump of table %s: intact = %v", rule, table, got)
				}
				l.write()
				if !l.verify() {
					t.Errorf("%s before the jump of table %s is not repaired", rule, table)
				}
				l.run("IPT -t " + table + " -D " + chain + " -p udp -j " + rule)
			}
		}
	})
}

// TestJumpLater: a jump that is added later is there before sets grow, and rules are not
// written for it.
func TestJumpLater(t *testing.T) {
	eachVariant(t, func(t *testing.T, l *lab) {
		l.fillAndWrite()
		j := Jump{Table: "nat", From: "OUTPUT", To: inNat.Chain, Comment: "test: own", First: true}
		for range 2 {
			l.AddJump(j)
			if n := l.write(); n > 1 {
				t.Errorf("%d runs of iptables-restore", n)
			}
		}
		l.want("OUTPUT", l.targets("nat", "OUTPUT"), []string{inNat.Chain})
		l.intact("at the end")
	})
}

// TestVerifyIsCheap: while nothing has changed nf_tables no rules are read.
func TestVerifyIsCheap(t *testing.T) {
	eachVariant(t, func(t *testing.T, l *lab) {
		l.fillAndWrite()
		l.verify()
		if (l.verified != 0) == l.Legacy {
			t.Errorf("generation %d is remembered, legacy %v", l.verified, l.Legacy)
		}
		before := l.verified
		l.run("IPT -N THEIRS")
		if !l.verify() || !l.Legacy && l.verified == before {
			t.Errorf("generation %d, was %d", l.verified, before)
		}
	})
}
