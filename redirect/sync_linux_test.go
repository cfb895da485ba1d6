package redirect

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
)

// manyTCP returns n TCP frontends.
func manyTCP(ipv6 bool, n int) []netip.AddrPort {
	out := make([]netip.AddrPort, n)
	for i := range out {
		out[i] = netip.AddrPortFrom(vip(ipv6, i), 80)
	}
	return out
}

// ruleCount returns how many rules of ours there are.
func ruleCount(t *testing.T, v variant) int {
	t.Helper()
	n := 0
	for line := range strings.Lines(output(t, v.command+"-save")) {
		if w := netfilter.Words(line); len(w) > 1 && w[0] == "-A" && (strings.HasPrefix(w[1], chainPrefix) ||
			strings.HasPrefix(netfilter.Target(w), chainPrefix)) {
			n++
		}
	}
	return n
}

// TestTenThousand holds what sets are for: rules do not grow with services, and
// one service more is one message and no process. To verify takes none with nf_tables, and
// one with the legacy backend.
func TestTenThousand(t *testing.T) {
	eachSetVariant(t, func(t *testing.T, v variant) {
		newNode(t)
		s := v.iptables()
		var runs func() int
		s.Command, runs = watched(t, v.command)
		all := manyTCP(v.ipv6, 10001)
		syncPlan(t, s, Plan{TCPPort: 40000, TCP: all[:10]})
		few := ruleCount(t, v)
		syncPlan(t, s, Plan{TCPPort: 40000, TCP: all[:10000]})
		if many := ruleCount(t, v); many != few || few == 0 {
			t.Errorf("%d rules for 10,000 frontends, %d for 10", many, few)
		}
		before, ran := s.netfilter.SetOps.Load(), runs()
		syncPlan(t, s, Plan{TCPPort: 40000, TCP: all})
		syncPlan(t, s, Plan{TCPPort: 40000, TCP: all}) // nothing to do
		if got := s.netfilter.SetOps.Load() - before; got != 2 {
			t.Errorf("one frontend more took %d set operations, want 2", got)
		}
		syncPlan(t, s, Plan{TCPPort: 40000, TCP: all[1:], Refuse: []lb.Frontend{tcp(all[0])}})
		if got := s.netfilter.SetOps.Load() - before; got != 4 {
			t.Errorf("moving a frontend took %d set operations, want 2", got-2)
		}
		if got := runs() - ran; got != 0 {
			t.Errorf("changes of sets ran %d processes", got)
		}
		have, err := s.kernel.shape.kernelSet(setTCP).Read()
		if err != nil || len(have) != 10000 {
			t.Errorf("the set has %d members, %v; want 10,000", len(have), err)
		}
		ran = runs()
		verified(t, s, true, "of 10,000")
		want := 0
		if !s.kernel.program.NFT {
			want = 1
		}
		if got := runs() - ran; got != want {
			t.Errorf("Verify ran %d processes, want %d", got, want)
		}
	})
}

// TestOneRestoreAChange counts processes, by programs that are not ours.
func TestOneRestoreAChange(t *testing.T) {
	eachIPTables(t, func(t *testing.T, v variant) {
		newNode(t)
		s := v.iptables()
		var runs func() int
		s.Command, runs = watched(t, v.command)
		dns := udp(netip.AddrPortFrom(vip(v.ipv6, 1), 53))
		plans := []Plan{
			{TCPPort: 40000, TCP: manyTCP(v.ipv6, 3)},
			{TCPPort: 40000, TCP: manyTCP(v.ipv6, 3), Ported: []Ported{{dns, 40001}}},
			{TCPPort: 40000, TCP: manyTCP(v.ipv6, 5), Ported: []Ported{{dns, 40002}}},
			{TCPPort: 40003, TCP: manyTCP(v.ipv6, 5), Refuse: []lb.Frontend{dns}},
			{},
		}
		syncPlan(t, s, plans[0])
		want := 1
		if !s.kernel.program.NFT {
			want = 2 // iptables-legacy-save, to remember what was written
		}
		for i, p := range plans[1:] {
			before, restores := runs(), s.Stats().Writes
			syncPlan(t, s, p)
			if got := runs() - before; got != want || s.Stats().Writes != restores+1 {
				t.Errorf("change %d ran %d processes, want %d, one of them to restore", i+1, got, want)
			}
			before = runs()
			syncPlan(t, s, p)
			if got := runs() - before; got != 0 {
				t.Errorf("no change after change %d ran %d processes", i+1, got)
			}
			verified(t, s, true, "after change %d", i+1)
		}
	})
}

// TestRestart makes a second steerer, as after a crash, over what the first left,
// while a client asks without pause for a frontend that stays.
func TestRestart(t *testing.T) {
	eachVariant(t, func(t *testing.T, v variant) {
		l := newLab(t)
		port := serveTCP(t, ":0")
		stays := netip.AddrPortFrom(vip(v.ipv6, 1), 80)
		goes := netip.AddrPortFrom(vip(v.ipv6, 2), 80)
		comes := netip.AddrPortFrom(vip(v.ipv6, 3), 80)
		dns := udp(netip.AddrPortFrom(vip(v.ipv6, 1), 53))
		first := v.steerer()
		syncPlan(t, first, Plan{TCPPort: port, TCP: []netip.AddrPort{stays, goes}, Refuse: []lb.Frontend{tcp(comes)}})

		asking := testbed.Repeat(t, 1, func() error {
			if got := l.Client.Ask("tcp", stays.String(), patience); got != stays.String() {
				return fmt.Errorf("the frontend that stays is not steered: %q", got)
			}
			return nil
		})
		var second steers
		for range 5 {
			second = v.steerer()
			syncPlan(t, second, Plan{TCPPort: port, TCP: []netip.AddrPort{stays, comes}, Refuse: []lb.Frontend{tcp(goes)}})
			syncPlan(t, second, Plan{TCPPort: port, TCP: []netip.AddrPort{stays, comes}, Ported: []Ported{{dns, 40001}},
				Refuse: []lb.Frontend{tcp(goes)}})
		}
		asking.Stop()
		for addr, want := range map[netip.AddrPort]string{stays: "answered", comes: "answered", goes: "refused"} {
			l.expect("after the restart", "host", tcp(addr), want)
		}
		verified(t, second, true, "after Sync")
		save := output(t, v.command+"-save")
		if n := strings.Count(save, "-j SLUICE-STEER\n"); n != 2 && !v.nftables {
			t.Errorf("%d jumps to SLUICE-STEER, want 2", n)
		}
	})
}

// TestJumpsOnlyWhereNeeded: what nobody needs is not asked for each packet, and what
// somebody needs is in place before that is steered.
func TestJumpsOnlyWhereNeeded(t *testing.T) {
	eachIPTables(t, func(t *testing.T, v variant) {
		newNode(t)
		has := func(j netfilter.Jump) bool {
			return strings.Contains(output(t, v.command+"-save", "-t", j.Table), "-A "+j.From+" ")
		}
		check := func(when string, needed Plan) {
			t.Helper()
			for _, j := range jumps {
				if want := j.Table != "mangle" || len(needed.Drop) > 0; has(j) != want {
					t.Errorf("%s: a jump in %s of table %s = %v, want %v", when, j.From, j.Table, !want, want)
				}
			}
		}
		all := verifyPlan(v.ipv6)
		plain := all
		plain.Drop, plain.DropOutside, plain.Restricted = nil, nil, nil
		s := v.iptables()
		for _, step := range []struct {
			when         string
			plan, needed Plan
		}{{"at first", plain, plain}, {"with all", all, all}, {"with nothing again", plain, all}} {
			syncPlan(t, s, step.plan)
			check(step.when, step.needed)
			verified(t, s, true, "%s", step.when)
		}
		output(t, v.command, "-t", "mangle", "-D", "PREROUTING", "1")
		verified(t, s, false, "without a jump")
		syncPlan(t, s, plain)
		check("after mending", all)
		syncPlan(t, v.iptables(), all)
		check("after a restart", all)
	})
}

// TestJumpsArePrepended puts rules of others there first, and more of them later.
func TestJumpsArePrepended(t *testing.T) {
	eachIPTables(t, func(t *testing.T, v variant) {
		newNode(t)
		for _, j := range jumps {
			output(t, v.command, "-t", j.Table, "-A", j.From, "-j", "ACCEPT")
		}
		s := v.iptables()
		syncPlan(t, s, verifyPlan(v.ipv6))
		for _, j := range jumps {
			rules := strings.Split(output(t, v.command, "-t", j.Table, "-S", j.From), "\n")
			if len(rules) < 3 || netfilter.Target(netfilter.Words(rules[1])) != j.To {
				t.Errorf("chain %s of table %s does not begin with our jump: %q", j.From, j.Table, rules)
			}
			output(t, v.command, "-t", j.Table, "-A", j.From, "-j", "ACCEPT")
			output(t, v.command, "-t", j.Table, "-I", j.From, "1", "-j", "RETURN")
		}
		output(t, v.command, "-N", "OTHER")
		output(t, "ipset", "create", "other", "hash:ip")
		verified(t, s, true, "with rules of others")
	})
}

// sorted makes texts comparable whose lines may be in any order, such as the
// members of a set, and of which one may be missing: the mark, which cannot be
// mended, since we did not make a table that is there.
func sorted(s string) string {
	lines := strings.Split(strings.ReplaceAll(s, ":"+netfilter.MarkChain(chainPrefix)+" - [0:0]\n", ""), "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// TestFailureLeavesWhatIsThere breaks iptables-restore for one Sync.
func TestFailureLeavesWhatIsThere(t *testing.T) {
	eachIPTables(t, func(t *testing.T, v variant) {
		l := newLab(t)
		s := v.iptables()
		s.Command, _ = watched(t, v.command)
		port := serveTCP(t, ":0")
		at := netip.AddrPortFrom(vip(v.ipv6, 1), 80)
		dns := udp(netip.AddrPortFrom(vip(v.ipv6, 1), 53))
		syncPlan(t, s, Plan{TCPPort: port, TCP: []netip.AddrPort{at}})

		restore := s.Command + "-restore"
		good, err := os.ReadFile(restore)
		check(t, err)
		testbed.WriteScript(t, restore, "echo 'line 3 failed' >&2\nexit 1\n")
		plan := Plan{TCPPort: port, TCP: []netip.AddrPort{at}, Ported: []Ported{{dns, 40001}}}
		if err := s.Sync(t.Context(), plan.Update()); err == nil || !strings.Contains(err.Error(), "line 3 failed") {
			t.Errorf("Sync with a broken iptables-restore: %v", err)
		}
		if err := s.Sync(t.Context(), Plan{TCP: []netip.AddrPort{at}}.Update()); err == nil {
			t.Error("Sync of a plan without a port is no error")
		}
		l.expect("after the failure", "host", tcp(at), "answered")
		testbed.WriteScript(t, restore, string(good))
		syncPlan(t, s, plan)
		verified(t, s, true, "after the retry")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := s.Sync(ctx, Plan{TCPPort: port}.Update()); !errors.Is(err, context.Canceled) {
			t.Errorf("Sync with a context that is over: %v", err)
		}
	})
}

// TestHostileInputPolicy is a node whose firewall drops all but what it knows.
func TestHostileInputPolicy(t *testing.T) {
	eachIPTables(t, func(t *testing.T, v variant) {
		l := newLab(t)
		output(t, v.command, "-A", "INPUT", "-m", "conntrack", "--ctstate", "ESTABLISHED", "-j", "ACCEPT")
		if v.ipv6 {
			output(t, v.command, "-A", "INPUT", "-p", "icmpv6", "-j", "ACCEPT")
		}
		output(t, v.command, "-P", "INPUT", "DROP")
		s := v.iptables()
		at, dns := netip.AddrPortFrom(vip(v.ipv6, 1), 80), netip.AddrPortFrom(vip(v.ipv6, 1), 53)
		web, any := netip.AddrPortFrom(nodeAddr[v.ipv6], 30080), netip.AddrPortFrom(unspecified(v.ipv6), 30080)
		one := netip.AddrPortFrom(nodeAddr[v.ipv6], 30081)
		serveTCP(t, ":30080")
		serveUDP(t, ":30080")
		serveTCP(t, ":30081")
		syncPlan(t, s, Plan{
			TCPPort: serveTCP(t, ":0"), TCP: []netip.AddrPort{at}, Ported: []Ported{{udp(dns), serveUDP(t, ":0")}},
			Accept: []lb.Frontend{tcp(any), udp(any), tcp(one)},
		})
		for _, f := range []lb.Frontend{tcp(at), tcp(web), tcp(one), udp(dns), udp(web)} {
			l.expect("with a firewall", "host", f, "answered")
		}
	})
}

// TestSameNumber is a frontend on an address of the node that has the number of the
// proxy's own port.
func TestSameNumber(t *testing.T) {
	eachVariant(t, func(t *testing.T, v variant) {
		l := newLab(t)
		s := v.steerer()
		port, udpPort := serveTCP(t, ":0"), serveUDP(t, ":0")
		at := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(nodeAddr[v.ipv6], port) }
		syncPlan(t, s, Plan{TCPPort: port, TCP: []netip.AddrPort{at(port)}, Ported: []Ported{{udp(at(udpPort)), udpPort}}})
		for _, host := range []*testbed.Host{l.Client, l.Node} {
			l.answers(host, tcp(at(port)), at(port).String())
			l.answers(host, udp(at(udpPort)), fmt.Sprint(udpPort))
		}
	})
}

// TestSCTPRules has the kernel take the rules for SCTP.
func TestSCTPRules(t *testing.T) {
	eachVariant(t, func(t *testing.T, v variant) {
		newNode(t)
		output(t, v.command, "-N", "TRY")
		if out, err := exec.Command(v.command, "-A", "TRY", "-p", "sctp", "-m", "sctp", "--dport", "1", "-j",
			"ACCEPT").CombinedOutput(); err != nil {
			t.Skipf("SKIPPED: the kernel cannot match SCTP ports: %s", out)
		}
		at := netip.AddrPortFrom(vip(v.ipv6, 1), 3868)
		s := v.steerer()
		syncPlan(t, s, Plan{Ported: []Ported{{lb.Frontend{Protocol: lb.SCTP, Addr: at}, 40001}},
			Local:  []netip.Addr{nodeAddr[v.ipv6]},
			Accept: []lb.Frontend{{Protocol: lb.SCTP, Addr: netip.AddrPortFrom(unspecified(v.ipv6), 3)}},
			Refuse: []lb.Frontend{{Protocol: lb.SCTP, Addr: netip.AddrPortFrom(at.Addr(), 1)}, {Protocol: lb.SCTP,
				Addr: netip.AddrPortFrom(unspecified(v.ipv6), 2)}}})
		verified(t, s, true, "after Sync")
	})
}

// TestWithoutSets hides the set match from iptables.
func TestWithoutSets(t *testing.T) {
	newNode(t)
	s := &IPTables{}
	s.Command, _ = watched(t, "iptables-nft")
	path := filepath.Join(filepath.Dir(s.Command), "iptables-nft-restore")
	real, err := exec.LookPath("iptables-nft-restore")
	check(t, err)
	testbed.WriteScript(t, path, fmt.Sprintf(`in=$(cat)
case $in in *match-set*) echo "Couldn't load match set" >&2; exit 2;; esac
echo "$in" | %s "$@"
`, real))
	before := saved(t)
	facts, err := s.Probe(t.Context())
	if err != nil || facts.IPSet || len(facts.Warnings) != 1 ||
		!strings.Contains(facts.Warnings[0], "Couldn't load match set") {
		t.Fatalf("Probe = %+v, %v", facts, err)
	}
	syncPlan(t, s, Plan{TCPPort: 40000, TCP: manyTCP(false, 3)})
	if save := output(t, "iptables-nft-save"); !strings.Contains(save, "-d 10.96.0.2/32") ||
		strings.Contains(save, "match-set") {
		t.Errorf("rules:\n%s", save)
	}
	check(t, Cleanup(t.Context()))
	if after := saved(t); after != before {
		t.Errorf("left behind:\n%s", after)
	}
}

// TestCounts: what was written and what failed is told.
func TestCounts(t *testing.T) {
	newNode(t)
	s := new(IPTables)
	dns := udp(netip.MustParseAddrPort("10.96.0.53:53"))
	syncPlan(t, s, Plan{TCPPort: 40000, Ported: []Ported{{dns, 40001}}})
	stats := s.Stats()
	for table, rules := range stats.Rules {
		have, err := s.kernel.program.Chains(t.Context(), table)
		if err != nil || len(have) == 0 || rules == 0 {
			t.Errorf("%d rules in table %s, which has chains %v, %v", rules, table, have, err)
		}
	}
	if len(stats.Rules) != 3 || stats.Failures != 0 {
		t.Errorf("tables %v, %d failures", stats.Rules, stats.Failures)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Sync(ctx, Plan{TCPPort: 40000, Ported: []Ported{{dns, 40002}}}.Update()); err == nil ||
		s.Stats().Failures != 1 {
		t.Errorf("a Sync that fails: %v, %+v", err, s.Stats())
	}
}
