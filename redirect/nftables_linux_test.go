package redirect

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
)

// family is how nft names the address family.
func (v variant) family() string {
	if v.ipv6 {
		return "ip6"
	}
	return "ip"
}

// nft runs nft, split at spaces, with the variant's table in place of TABLE.
func (v variant) nft(t *testing.T, command string) string {
	t.Helper()
	table := v.family() + " " + tableName
	return output(t, "nft", strings.Fields(strings.Replace(command, "TABLE", table, 1))...)
}

// nftRules returns how many rules nft lists.
func (v variant) nftRules(t *testing.T) int {
	t.Helper()
	return strings.Count(v.nft(t, "--handle list ruleset"), "# handle ")
}

// TestConstantRules: rules do not depend on the number of frontends, of no protocol, and nft can list them.
func TestConstantRules(t *testing.T) {
	eachNFTables(t, func(t *testing.T, v variant) {
		newNode(t)
		plan := func(n int) Plan {
			p := Plan{TCPPort: 40000, TCP: manyTCP(v.ipv6, n), Local: []netip.Addr{nodeAddr[v.ipv6]}}
			for i, addr := range p.TCP {
				for _, protocol := range []lb.Protocol{lb.UDP, lb.SCTP} {
					p.Ported = append(p.Ported, Ported{lb.Frontend{Protocol: protocol, Addr: addr}, uint16(20000 + i)})
				}
			}
			return p
		}
		s := v.steerer()
		syncPlan(t, s, plan(10))
		few := v.nftRules(t)
		syncPlan(t, s, plan(10000))
		if many := v.nftRules(t); many != few || few == 0 {
			t.Errorf("%d rules for 10,000 frontends of each protocol, %d for 10", many, few)
		}
		if n := s.Stats().Rules[tableName]; n == 0 || n > 30 {
			t.Errorf("%d rules counted", n)
		}
		verified(t, s, true, "of 10,000")
		before := s.Stats().Writes
		syncPlan(t, s, plan(10000))
		syncPlan(t, s, plan(9999))
		if n := s.Stats().Writes - before; n != 1 {
			t.Errorf("one change took %d transactions", n)
		}
	})
}

// TestNFTablesDamage does to the table what others may do.
func TestNFTablesDamage(t *testing.T) {
	eachNFTables(t, func(t *testing.T, v variant) {
		newNode(t)
		s := v.steerer()
		plan := verifyPlan(v.ipv6)
		verified(t, s, false, "before Sync")
		syncPlan(t, s, plan)
		want := sorted(v.saved(t))
		one := vip(v.ipv6, 1).String()
		for _, damage := range []string{
			"flush ruleset",
			"delete table TABLE",
			"add table TABLE { flags dormant ; }",
			"add chain TABLE output { policy drop ; }",
			"flush table TABLE",
			"flush chain TABLE frontends",
			"insert rule TABLE frontends accept",
			"add rule TABLE refuse accept",
			"add chain TABLE theirs",
			"flush map TABLE steer",
			"delete element TABLE steer { " + one + " . udp . 53 }",
			"add element TABLE refuse { " + one + " . udp . 54 }",
			"flush set TABLE allowed",
			"flush set TABLE inside",
			"flush set TABLE drop-node-ports",
		} {
			v.nft(t, damage)
			verified(t, s, false, "after %s", damage)
			syncPlan(t, s, plan)
			verified(t, s, true, "after mending %s", damage)
			if diff := cmp.Diff(want, sorted(v.saved(t))); diff != "" {
				t.Errorf("after mending %s (-want +got):\n%s", damage, diff)
			}
		}
		v.nft(t, "add table ip theirs")
		verified(t, s, true, "beside what others have")
	})
}

// TestNFTablesProbe: a probe leaves nothing, and says what is missing.
func TestNFTablesProbe(t *testing.T) {
	eachNFTables(t, func(t *testing.T, v variant) {
		newNode(t)
		for range 2 {
			check(t, (&NFTables{IPv6: v.ipv6}).Probe(t.Context()))
		}
		if list := v.nft(t, "list ruleset"); list != "" {
			t.Errorf("Probe left something:\n%s", list)
		}
		loopback := map[bool]netip.Addr{false: netip.MustParseAddr("127.0.0.1"), true: netip.IPv6Loopback()}[v.ipv6]
		for _, bind := range []netip.Addr{loopback, nodeAddr[!v.ipv6]} {
			if err := (&NFTables{IPv6: v.ipv6, BindAddr: bind}).Probe(t.Context()); err == nil ||
				!strings.Contains(err.Error(), bind.String()) {
				t.Errorf("Probe with bind address %s: %v", bind, err)
			}
		}
	})
}

// TestFirewallDecides: unlike with iptables, nothing is let past the firewall of the node, since a packet that one
// table accepts may be dropped by another.
func TestFirewallDecides(t *testing.T) {
	eachNFTables(t, func(t *testing.T, v variant) {
		l := newLab(t)
		output(t, v.command, "-A", "INPUT", "-m", "conntrack", "--ctstate", "ESTABLISHED", "-j", "ACCEPT")
		if v.ipv6 {
			output(t, v.command, "-A", "INPUT", "-p", "icmpv6", "-j", "ACCEPT")
		}
		output(t, v.command, "-P", "INPUT", "DROP")
		at := tcp(netip.AddrPortFrom(vip(v.ipv6, 1), 80))
		syncPlan(t, v.steerer(), Plan{TCPPort: serveTCP(t, ":0"), TCP: []netip.AddrPort{at.Addr}})
		l.expect("a firewall that knows nothing of it", "host", at, testbed.Dropped)
		output(t, v.command, "-A", "INPUT", "-m", "conntrack", "--ctstate", "DNAT", "-j", "ACCEPT")
		l.expect("a firewall that lets in what is steered", "host", at, "answered")
	})
}

// slowChain adds a chain that keeps packets for about as long as a transaction takes.
func (v variant) slowChain(t *testing.T) {
	t.Helper()
	rule := v.family() + " saddr " + map[bool]string{false: "192.0.2.1", true: "2001:db8::1"}[v.ipv6] + " drop;"
	feed(t, fmt.Sprintf("table %s %s { chain slowest { %s }; chain slower { %s }; chain slow { %s }; }\n", v.family(),
		tableName, strings.Repeat(rule, 50), strings.Repeat("jump slowest;", 30), strings.Repeat("jump slower;", 30)),
		"nft", "-f", "-")
}

// TestSlowReplacement: no connection is lost while another process writes all of the table, and packets are between the
// beginning of the old rules and the map that steers.
func TestSlowReplacement(t *testing.T) {
	eachNFTables(t, func(t *testing.T, v variant) {
		l := newLab(t)
		at := netip.AddrPortFrom(vip(v.ipv6, 1), 80)
		plan := Plan{TCPPort: serveTCP(t, ":0"), TCP: []netip.AddrPort{at}}
		syncPlan(t, v.steerer(), plan)
		asking := testbed.Repeat(t, 1, func() error { return openAtOnce(l.Client, at) })
		for range 25 {
			v.slowChain(t)
			v.nft(t, "insert rule TABLE prerouting jump slow")
			syncPlan(t, v.steerer(), plan)
		}
		asking.Stop()
	})
}

// TestSlowScreens is TestSlowReaders with nftables.
func TestSlowScreens(t *testing.T) {
	eachNFTables(t, func(t *testing.T, v variant) {
		l := newLab(t)
		testSlowReaders(t, l, v, func() {
			v.slowChain(t)
			for line := range strings.Lines(v.nft(t, "--handle list chain TABLE frontends")) {
				if _, handle, ok := strings.Cut(line, "# handle "); ok && strings.Contains(line, "@outside ") {
					v.nft(t, "add rule TABLE frontends position "+strings.TrimSpace(handle)+" jump slow")
					return
				}
			}
			t.Error("there is no rule to put others behind")
		})
	})
}

// TestChangeOfFilter: another packet filter takes over from the one of an earlier process without a gap, and removes
// what that has left.
func TestChangeOfFilter(t *testing.T) {
	eachIPTables(t, func(t *testing.T, old variant) {
		now := variant{name: "nftables", nftables: true, command: old.command, ipv6: old.ipv6}
		l := newLab(t)
		output(t, old.command, "-t", "nat", "-N", "OTHER")
		before := saved(t) + now.nft(t, "list tables")
		port, dns := serveTCP(t, ":0"), udp(netip.AddrPortFrom(vip(old.ipv6, 1), 53))
		at := netip.AddrPortFrom(vip(old.ipv6, 1), 80)
		plan := verifyPlan(old.ipv6)
		plan.TCPPort, plan.TCP, plan.DropOutside = port, []netip.AddrPort{at}, nil
		plan.Ported = []Ported{{dns, serveUDP(t, ":0")}}
		first := old.iptables()
		syncPlan(t, first, plan)
		local := netip.AddrPortFrom(clientAddr[old.ipv6], 5000)
		ask := func() {
			t.Helper()
			if got, want := l.ask(local, dns), fmt.Sprint(plan.Ported[0].Port); got != want {
				t.Errorf("asked for DNS: %q, want %q", got, want)
			}
		}
		ask()
		asking := testbed.Repeat(t, 1, func() error { return openAtOnce(l.Client, at) })
		for i := range 3 {
			for _, v := range []variant{now, old} {
				s := &reconciled{steers: v.steerer()}
				left := s.Leftover(t.Context())
				if left.TCPPort != port || left.Ported[dns] != plan.Ported[0].Port || left.Table == v.nftables {
					t.Errorf("change %d to %s: leftover %+v", i, v.name, left)
				}
				s.sync(t, plan)
				verified(t, s, true, "after change %d", i)
				ask()
				if n := s.deleted(); n != 0 {
					t.Errorf("%d entries of flows deleted that stay", n)
				}
				if ours := strings.Contains(savedBy(t, old.command), "SLUICE"); ours == v.nftables {
					t.Errorf("change %d: rules of iptables are there: %v", i, ours)
				}
				if ours := strings.Contains(now.nft(t, "list tables"), tableName); ours != v.nftables {
					t.Errorf("change %d: rules of nftables are there: %v", i, ours)
				}
			}
		}
		asking.Stop()
		syncPlan(t, now.steerer(), plan)
		check(t, Cleanup(t.Context()))
		if diff := cmp.Diff(emptyTables(before), emptyTables(saved(t)+now.nft(t, "list tables"))); diff != "" {
			t.Errorf("left behind (-before +after):\n%s", diff)
		}
	})
}

// TestNFTablesCleanup: nothing is left, nor conntrack entries of UDP flows.
func TestNFTablesCleanup(t *testing.T) {
	eachNFTables(t, func(t *testing.T, v variant) {
		l := newLab(t)
		dns := netip.AddrPortFrom(vip(v.ipv6, 1), 53)
		syncPlan(t, v.steerer(), Plan{Ported: []Ported{{udp(dns), serveUDP(t, ":0")}}})
		l.expect("before", "host", udp(dns), "answered")
		check(t, Cleanup(t.Context()))
		if left := v.nft(t, "list ruleset"); left != "" {
			t.Errorf("left behind:\n%s", left)
		}
		if left := tracked(t, v.ipv6); len(left) != 0 {
			t.Errorf("flows: %q", left)
		}
	})
}
