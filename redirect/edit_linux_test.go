package redirect

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/lb"
)

// TestEditIsTheWhole: rules that are edited from one random plan to the next are, chain
// by chain, those of the last plan.
func TestEditIsTheWhole(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 9))
	for _, sets := range []bool{true, false} {
		s := shape{sets: sets, prefix: chainPrefix}
		p := randomPlan(rng, Plan{})
		held := parseRules(s.render(p))
		small, whole := 0, 0
		for step := range 300 {
			next := randomPlan(rng, p)
			script, _ := s.edit(s.render(p), s.render(next))
			play(t, held, script)
			want := parseRules(s.render(next))
			if got, want := inAnyOrder(s, held), inAnyOrder(s, want); got != want {
				t.Fatalf("sets %v, step %d: after\n%s\nthe rules are\n%s\nwant\n%s", sets, step, script, got, want)
			}
			if strings.Contains(string(script), "\n-D ") || !strings.Contains(string(script), ":") {
				small++
			} else {
				whole++
			}
			p = next
		}
		if small == 0 || whole == 0 {
			t.Errorf("sets %v: %d changes were edits and %d whole chains: the test has to see both", sets, small, whole)
		}
	}
}

// randomPlan returns p, which is one of Plan.family, with a few UDP frontends and refusals
// more or less.
func randomPlan(rng *rand.Rand, p Plan) Plan {
	p.TCPPort = 40000
	p.Ported, p.Refuse = slices.Clone(p.Ported), slices.Clone(p.Refuse)
	for range 1 + rng.IntN(3) {
		addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, byte(rng.IntN(4)), byte(rng.IntN(20))}), 53)
		f := lb.Frontend{Protocol: lb.UDP, Addr: addr}
		if i := slices.IndexFunc(p.Ported, func(x Ported) bool { return x.Frontend == f }); i >= 0 {
			p.Ported = slices.Delete(p.Ported, i, i+1)
		} else {
			p.Ported = append(p.Ported, Ported{f, uint16(20000 + rng.IntN(1000))})
		}
	}
	if rng.IntN(3) == 0 {
		p.Refuse = []lb.Frontend{{Protocol: lb.TCP, Addr: netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(30000+rng.IntN(3)))}}
	}
	slices.SortFunc(p.Ported, func(a, b Ported) int { return compareFrontend(a.Frontend, b.Frontend) })
	return p
}

// play does to the rules what iptables-restore --noflush would.
func play(t *testing.T, held ruleset, script []byte) {
	t.Helper()
	var chains map[string][]string
	for line := range strings.Lines(string(script)) {
		line = strings.TrimSuffix(line, "\n")
		op, rest, _ := strings.Cut(line, " ")
		chain, _, _ := strings.Cut(rest, " ")
		switch {
		case line[0] == '*':
			chains = held[line[1:]]
		case line[0] == ':':
			chains[op[1:]] = nil
		case op == "-A":
			chains[chain] = append(chains[chain], line)
		case op == "-D":
			i := slices.Index(chains[chain], "-A "+rest)
			if i < 0 {
				t.Fatalf("%s: no such rule", line)
			}
			chains[chain] = slices.Delete(chains[chain], i, i+1)
		case op == "-X":
			if len(chains[rest]) > 0 {
				t.Fatalf("%s: it has rules", line)
			}
			for _, other := range slices.Concat(slices.Collect(maps.Values(chains))...) {
				if strings.HasSuffix(other, " "+rest) {
					t.Fatalf("%s: %s", line, other)
				}
			}
			delete(chains, rest)
		case op != "COMMIT":
			t.Fatalf("what is %q?", line)
		}
	}
}

// inAnyOrder prints rules, sorted where order does not matter.
func inAnyOrder(s shape, rules ruleset) string {
	var b strings.Builder
	for _, table := range slices.Sorted(maps.Keys(rules)) {
		for _, chain := range slices.Sorted(maps.Keys(rules[table])) {
			lines := slices.Clone(rules[table][chain])
			if strings.HasPrefix(chain, s.chain(chainUDP)) {
				slices.Sort(lines)
			}
			fmt.Fprintln(&b, table, chain)
			for _, line := range lines {
				fmt.Fprintln(&b, table, line)
			}
		}
	}
	return b.String()
}

// TestOneRuleAChange: one UDP frontend more among others, or fewer, writes one rule, and
// the kernel then holds what a steerer that begins anew would write.
func TestOneRuleAChange(t *testing.T) {
	eachSetVariant(t, func(t *testing.T, v variant) {
		newNode(t)
		s := v.steerer()
		s.Command, _ = watched(t, v.command)
		script := filepath.Join(t.TempDir(), "script")
		program, err := exec.LookPath(v.command + "-restore")
		check(t, err)
		check(t, os.WriteFile(s.Command+"-restore", fmt.Appendf(nil, "#!/bin/sh\ntee %s | %s \"$@\"\n", script, program), 0o755))
		plan := func(n int) Plan { // 20 buckets and then more frontends in them
			p := Plan{TCPPort: 40000}
			for i := range n {
				p.Ported = append(p.Ported, Ported{udp(netip.AddrPortFrom(vip(v.ipv6, i%20+buckets*(i/20)), 53)), uint16(41000 + i)})
			}
			return p
		}
		syncPlan(t, s, plan(40))
		for _, change := range []struct {
			n  int
			op string
		}{{41, "-A"}, {40, "-D"}} {
			syncPlan(t, s, plan(change.n))
			text, err := os.ReadFile(script)
			check(t, err)
			if rules := strings.Count(string(text), "\n-"); rules != 1 || !strings.Contains(string(text), "\n"+change.op+" ") {
				t.Errorf("%d frontends were made by\n%s\nwant one rule, %s", change.n, text, change.op)
			}
			if ok, err := s.Verify(t.Context()); !ok || err != nil {
				t.Errorf("Verify with %d frontends = %v, %v", change.n, ok, err)
			}
		}
		// What others have changed meanwhile is written whole, at once.
		output(t, v.command, "-t", "nat", "-F", chainPrefix+chainUDP)
		syncPlan(t, s, plan(39))
		if ok, err := s.Verify(t.Context()); !ok || err != nil {
			t.Errorf("Verify after a change of what others had changed = %v, %v", ok, err)
		}
		if got := strings.Count(output(t, v.command+"-save", "-t", "nat"), "-A "+chainPrefix+chainUDP); got != 20+39 {
			t.Errorf("%d rules for 39 frontends in 20 buckets", got)
		}
	})
}

// TestBucketsComeAndGo: a bucket is there while it has rules, also after a steerer of
// an earlier process has left others.
func TestBucketsComeAndGo(t *testing.T) {
	eachVariant(t, func(t *testing.T, v variant) {
		newNode(t)
		plan := func(vips ...int) Plan {
			p := Plan{TCPPort: 40000}
			for _, n := range vips {
				p.Ported = append(p.Ported, Ported{udp(netip.AddrPortFrom(vip(v.ipv6, n), 53)), uint16(41000 + n)})
			}
			return p
		}
		want := func(s *IPTables, vips ...int) {
			t.Helper()
			syncPlan(t, s, plan(vips...))
			save := output(t, v.command+"-save", "-t", "nat")
			used := make(map[int]bool)
			for _, n := range vips {
				used[n%buckets] = true
			}
			if n := strings.Count(save, "\n:"+chainPrefix+chainUDP+"-"); n != len(used) {
				t.Errorf("frontends %v: %d buckets, want %d:\n%s", vips, n, len(used), save)
			}
			if n := strings.Count(save, "\n-A "+chainPrefix+chainUDP+"-"); n != len(vips) {
				t.Errorf("frontends %v: %d rules in buckets:\n%s", vips, n, save)
			}
			if ok, err := s.Verify(t.Context()); !ok || err != nil {
				t.Errorf("frontends %v: Verify = %v, %v", vips, ok, err)
			}
		}
		s := v.steerer()
		for _, vips := range [][]int{{1, 2, 33}, {1, 2}, {2}, {2, 3}, {3}, {}, {1}, {1, 2, 33, 4}} {
			want(s, vips...)
		}
		output(t, v.command, "-t", "nat", "-F")
		want(s, 1, 5) // written whole, as others have changed it
		want(v.steerer(), 5, 6)
		want(v.steerer())
	})
}
