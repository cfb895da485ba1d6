package netfilter

import (
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
)

func TestMain(m *testing.M) { os.Exit(testbed.Main(m)) }

// lab is a host on which a test runs, with a ruleset.
type lab struct {
	*testing.T
	testbed.IPTables
	*Ruleset
	counters Counters
}

// eachVariant runs a test with each backend and family, on a host of its own.
func eachVariant(t *testing.T, f func(t *testing.T, l *lab)) {
	testbed.EachIPTables(t, func(t *testing.T, h *testbed.Host, v testbed.IPTables) {
		h.Enter(t)
		l := &lab{T: t, IPTables: v}
		l.restart()
		f(t, l)
	})
}

// Places and sets of the layout of tests.
var (
	inMangle = Place{"mangle", "TEST-OUR-SCREEN"}
	inNat    = Place{"nat", "TEST-OUR-STEER"}
	inFilter = Place{"filter", "TEST-OUR-REFUSE"}
	parted   = Place{"nat", "TEST-OUR-PART"}

	inside  = Set{Name: "TEST4-INSIDE", Type: HashNet}
	screens = Set{Name: "TEST4-SCREEN", Type: HashIPPort}
	serves  = Set{Name: "TEST4-SERVE", Type: HashIPPort}
)

func testLayout(ipv6 bool, counters *Counters) Layout {
	family := func(s Set) Set {
		s.IPv6 = ipv6
		return s
	}
	return Layout{
		IPv6: ipv6, Prefix: "TEST-", Counters: counters,
		Own:    func(_, chain string) bool { return strings.HasPrefix(chain, "TEST-OUR-") },
		Tables: []Table{{Name: "mangle"}, {Name: "nat"}, {Name: "filter", Outer: true}},
		Sets: []SetGroup{
			{Sets: []Set{family(inside)}, Late: true}, {Sets: []Set{family(screens)}}, {Sets: []Set{family(serves)}},
		},
	}
}

// restart makes the ruleset a new one, as another process has it.
func (l *lab) restart() {
	l.Helper()
	p, err := Open(l.Context(), l.Command(), l.IPv6)
	if err != nil {
		l.Fatal(err)
	}
	if p.NFT == l.Legacy || p.Version == "" {
		l.Fatalf("Open(%s) = %+v", l.Command(), p)
	}
	l.Ruleset = NewRuleset(p, testLayout(l.IPv6, &l.counters))
}

// fill gives the ruleset chains, jumps and members.
func (l *lab) fill() {
	l.SetChain(inMangle, []string{"-m set --match-set TEST4-INSIDE src -j RETURN",
		"-m set --match-set TEST4-SCREEN dst,dst -j DROP"})
	l.SetChain(inNat, []string{"-p tcp -m set --match-set TEST4-SERVE dst,dst -j REDIRECT --to-ports 40000"})
	l.SetChain(inFilter, []string{"-p tcp -j RETURN", "-p udp -j RETURN"})
	l.AddJump(Jump{Table: "mangle", From: "PREROUTING", To: inMangle.Chain, NewOnly: true, Comment: "test: screen",
		First: true})
	l.AddJump(Jump{Table: "nat", From: "PREROUTING", To: inNat.Chain, Comment: "test: steer"})
	l.AddJump(Jump{Table: "filter", From: "OUTPUT", To: inFilter.Chain, NewOnly: true, Comment: "test: refuse"})
	for i := range 5 {
		l.Member(serves.Name, l.member(i), 1)
	}
	l.Member(screens.Name, l.member(1), 1)
	l.Member(inside.Name, Member{Net: netip.PrefixFrom(l.addr(9), l.addr(9).BitLen())}, 1)
}

func (l *lab) addr(i int) netip.Addr { return testbed.VIP(l.IPv6, i) }

func (l *lab) member(i int) Member { return Member{Addr: l.addr(i), Protocol: 6, Port: 80} }

// write writes the ruleset, and returns how often iptables-restore ran.
func (l *lab) write() uint64 {
	l.Helper()
	before := l.counters.Restores.Load()
	if err := l.Write(l.Context(), nil); err != nil {
		l.Fatal(err)
	}
	return l.counters.Restores.Load() - before
}

func (l *lab) fillAndWrite() {
	l.Helper()
	l.fill()
	l.write()
}

// intact wants Verify to find nothing.
func (l *lab) intact(what string) {
	if l.Helper(); !l.verify() {
		l.Errorf("%s: not intact", what)
	}
}

func (l *lab) verify() bool {
	l.Helper()
	intact, err := l.Verify(l.Context())
	if err != nil {
		l.Fatal(err)
	}
	return intact
}

// run runs a piece of shell, in which IPT is the command of the backend.
func (l *lab) run(command string) string {
	l.Helper()
	return testbed.Run(l, "sh", "-c", strings.ReplaceAll(command, "IPT", l.Command()))
}

// rules returns what a chain has, without comments.
func (l *lab) rules(at Place) []string {
	l.Helper()
	var out []string
	for line := range strings.Lines(l.run("IPT -t " + at.Table + " -S " + at.Chain)) {
		if rule, ok := strings.CutPrefix(strings.TrimSpace(line), "-A "+at.Chain+" "); ok {
			out = append(out, rule)
		}
	}
	return out
}

// targets returns where the rules of a chain lead to.
func (l *lab) targets(table, chain string) (out []string) {
	l.Helper()
	for _, rule := range l.rules(Place{table, chain}) {
		out = append(out, Target(Words(rule)))
	}
	return out
}

func (l *lab) want(what string, got, want []string) {
	l.Helper()
	if !slices.Equal(got, want) {
		l.Errorf("%s: %q, want %q", what, got, want)
	}
}
