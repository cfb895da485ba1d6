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

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
)

// TestUpdatesAreTheWhole: after random updates members and rules are those of the entries
// that are left, whichever way that came about.
func TestUpdatesAreTheWhole(t *testing.T) {
	for _, c := range []struct{ sets, ipv6 bool }{{true, false}, {false, false}, {true, true}} {
		rng := rand.New(rand.NewPCG(8, 9))
		s := shape{sets: c.sets, ipv6: c.ipv6, prefix: chainPrefix}
		k := steerer{entries: make(map[lb.Frontend]Entry)}
		r := newRuleset(s, nil, nil, Host{}, k.entries)
		k.rules = r
		for step := range 300 {
			u := randomUpdate(rng, k.entries, c.ipv6)
			p, err := u.family(c.ipv6)
			check(t, err)
			check(t, k.fold(u.Whole, p))
			r.render()
			fresh := newRuleset(s, nil, nil, k.host, maps.Clone(k.entries))
			fresh.render()
			if got, want := inAnyOrder(r), inAnyOrder(fresh); got != want {
				t.Fatalf("%+v, step %d: after %+v\n%s", c, step, u, cmp.Diff(want, got))
			}
			if r.screens != fresh.screens {
				t.Fatalf("%+v, step %d: %d entries screen, want %d", c, step, r.screens, fresh.screens)
			}
		}
	}
}

// randomUpdate returns a small change of some entries, or now and then all anew.
func randomUpdate(rng *rand.Rand, entries map[lb.Frontend]Entry, ipv6 bool) Update {
	u := Update{Host: Host{TCPPort: 40000}, Whole: rng.IntN(20) == 0}
	if rng.IntN(10) == 0 {
		u.Host.TCPPort, u.Host.Inside = 40001, []netip.Prefix{podNet(ipv6)}
		u.Host.Local = []netip.Addr{nodeAddr[ipv6]}
	}
	seen := make(map[lb.Frontend]bool)
	for range 1 + rng.IntN(4) {
		ip := vip(ipv6, rng.IntN(4)*100+rng.IntN(3))
		if rng.IntN(4) == 0 {
			ip = unspecified(ipv6)
		}
		f := lb.Frontend{Protocol: lb.TCP + lb.Protocol(rng.IntN(3)), Addr: netip.AddrPortFrom(ip, []uint16{53, 80, 40000,
			40001}[rng.IntN(4)])}
		if seen[f] {
			continue
		}
		seen[f] = true
		if _, there := entries[f]; there {
			u.Remove = append(u.Remove, Entry{Frontend: f})
			if rng.IntN(2) == 0 {
				continue
			}
		}
		e := Entry{Frontend: f, Action: Action(rng.IntN(5)), DropOutside: rng.IntN(3) == 0}
		if e.Action == Redirect && f.Protocol != lb.TCP {
			e.Port = uint16(40000 + rng.IntN(3))
		}
		if nodePort(f.Addr) && e.Action == Redirect {
			e.Action, e.Port = Drop, 0
		} else if !nodePort(f.Addr) && rng.IntN(3) == 0 {
			e.Sources = []netip.Prefix{podNet(ipv6), podNet(!ipv6)}
		}
		u.Add = append(u.Add, e)
	}
	return u
}

// inAnyOrder prints rules, sorted in the chains where order does not matter, and members.
func inAnyOrder(r *ruleset) string {
	var out, unordered []string
	for line := range strings.Lines(r.String()) {
		if strings.HasPrefix(line, "-A "+r.chain(chainUDP)) {
			unordered = append(unordered, line)
		} else {
			out = append(out, line)
		}
	}
	for _, name := range slices.Concat(setGroups...) {
		if r.sets {
			for _, m := range r.Members(r.set(name)).Missing() { // since none was written
				unordered = append(unordered, fmt.Sprintf("%s %+v\n", name, m))
			}
		}
	}
	slices.Sort(unordered)
	return strings.Join(append(out, unordered...), "")
}

// TestRandomSync: what random updates lead to is in the kernel, and Verify finds it.
func TestRandomSync(t *testing.T) {
	eachVariant(t, func(t *testing.T, v variant) {
		newNode(t)
		rng := rand.New(rand.NewPCG(5, 6))
		s := v.steerer()
		for step := range 30 {
			check(t, s.Sync(t.Context(), randomUpdate(rng, entriesOf(s).entries, v.ipv6)))
			verified(t, s, true, "step %d", step)
		}
		now := sorted(v.saved(t))
		fresh := v.steerer()
		whole := Update{Host: entriesOf(s).host, Whole: true, Add: slices.Collect(maps.Values(entriesOf(s).entries))}
		check(t, fresh.Sync(t.Context(), whole))
		if diff := cmp.Diff(sorted(v.saved(t)), now); diff != "" {
			t.Errorf("a steerer that begins anew changes (-new +old):\n%s", diff)
		}
	})
}

// TestUpdateContradicts: an update that adds what is there and stays changes nothing.
func TestUpdateContradicts(t *testing.T) {
	newNode(t)
	s := &IPTables{}
	web := Entry{Frontend: tcp(addr("10.96.0.1:80")), Action: Redirect}
	host := Host{TCPPort: 40000}
	check(t, s.Sync(t.Context(), Update{Host: host, Add: []Entry{web}}))
	before := savedBy(t, "iptables-nft")
	refused := web
	refused.Action = Refuse
	err := s.Sync(t.Context(), Update{Host: host, Add: []Entry{refused}})
	if err == nil || !strings.Contains(err.Error(), "both redirected and refused") {
		t.Errorf("Sync = %v", err)
	}
	check(t, s.Sync(t.Context(), Update{Host: host, Add: []Entry{web}})) // as it is
	if diff := cmp.Diff(before, savedBy(t, "iptables-nft")); diff != "" {
		t.Errorf("rules and sets changed:\n%s", diff)
	}
	check(t, s.Sync(t.Context(), Update{Host: host, Remove: []Entry{web}, Add: []Entry{refused}}))
	if save := output(t, "ipset", "list", "SLUICE4-REFUSE"); !strings.Contains(save, "10.96.0.1,tcp:80") {
		t.Errorf("not refused:\n%s", save)
	}
}

// TestOneRuleAChange: one UDP frontend more among others, or fewer, writes one rule, and
// the kernel then holds what a steerer that begins anew would write.
func TestOneRuleAChange(t *testing.T) {
	eachSetVariant(t, func(t *testing.T, v variant) {
		newNode(t)
		s := v.iptables()
		s.Command, _ = watched(t, v.command)
		script := filepath.Join(t.TempDir(), "script")
		program, err := exec.LookPath(v.command + "-restore")
		check(t, err)
		testbed.WriteScript(t, s.Command+"-restore", fmt.Sprintf("tee %s | %s \"$@\"\n", script, program))
		plan := func(n int) Plan { // 20 buckets and then more frontends in them
			p := Plan{TCPPort: 40000}
			for i := range n {
				p.Ported = append(p.Ported, Ported{udp(netip.AddrPortFrom(vip(v.ipv6, i%20+buckets*(i/20)), 53)), uint16(41000 +
					i)})
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
			verified(t, s, true, "with %d frontends", change.n)
		}
		// What others have changed meanwhile is written whole, at once.
		output(t, v.command, "-t", "nat", "-F", chainPrefix+chainUDP)
		syncPlan(t, s, plan(39))
		verified(t, s, true, "after a change of what others had changed")
		if got := strings.Count(output(t, v.command+"-save", "-t", "nat"), "-A "+chainPrefix+chainUDP); got != 20+39 {
			t.Errorf("%d rules for 39 frontends in 20 buckets", got)
		}
	})
}

// TestBucketsComeAndGo: a bucket is there while it has rules, also after a steerer of
// an earlier process has left others.
func TestBucketsComeAndGo(t *testing.T) {
	eachIPTables(t, func(t *testing.T, v variant) {
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
			verified(t, s, true, "frontends %v", vips)
		}
		s := v.iptables()
		for _, vips := range [][]int{{1, 2, 33}, {1, 2}, {2}, {2, 3}, {3}, {}, {1}, {1, 2, 33, 4}} {
			want(s, vips...)
		}
		output(t, v.command, "-t", "nat", "-F")
		want(s, 1, 5) // written whole, as others have changed it
		want(v.iptables(), 5, 6)
		want(v.iptables())
	})
}
