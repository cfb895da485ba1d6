package redirect

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// foreign are rules of others, some of which look a little like ours or like
// those of kube-proxy's userspace mode.
const foreign = `*nat
:KUBE-SERVICES - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-PORTALS - [0:0]
:MY-SLUICE-STEER - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A PREROUTING -m comment --comment "see also -j SLUICE-STEER" -j MY-SLUICE-STEER
-A POSTROUTING -s 10.244.0.0/16 -j MASQUERADE
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-NODEPORTS -p tcp -m tcp --dport 30000 -j ACCEPT
COMMIT
*filter
:KUBE-FIREWALL - [0:0]
-A INPUT -j KUBE-FIREWALL
-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT
COMMIT
*mangle
-A FORWARD -p tcp -m tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu
COMMIT
`

// userspaceMode is what kube-proxy's userspace mode left behind
// (reference: its chains and jumps up to 1.25).
const userspaceMode = `*nat
:KUBE-PORTALS-CONTAINER - [0:0]
:KUBE-PORTALS-HOST - [0:0]
:KUBE-NODEPORT-CONTAINER - [0:0]
:KUBE-NODEPORT-HOST - [0:0]
-I PREROUTING -m comment --comment "handle ClusterIPs; NOTE: this must be before the NodePort rules" -j KUBE-PORTALS-CONTAINER
-A PREROUTING -m addrtype --dst-type LOCAL -m comment --comment "handle service NodePorts; NOTE: this must be the last rule in the chain" -j KUBE-NODEPORT-CONTAINER
-I OUTPUT -m comment --comment "handle ClusterIPs; NOTE: this must be before the NodePort rules" -j KUBE-PORTALS-HOST
-A OUTPUT -m addrtype --dst-type LOCAL -m comment --comment "handle service NodePorts; NOTE: this must be the last rule in the chain" -j KUBE-NODEPORT-HOST
-A KUBE-PORTALS-CONTAINER -p tcp -m comment --comment "default/kubernetes:https" -m tcp --dport 443 -j REDIRECT --to-ports 33333
-A KUBE-NODEPORT-HOST -p tcp -m comment --comment "default/web" -m tcp --dport 30080 -j REDIRECT --to-ports 33334
COMMIT
*filter
:KUBE-NODEPORT-NON-LOCAL - [0:0]
-I INPUT -m comment --comment "Ensure that non-local NodePort traffic can flow" -j KUBE-NODEPORT-NON-LOCAL
-A KUBE-NODEPORT-NON-LOCAL -p tcp -m comment --comment "default/web" -m tcp --dport 33334 -m state --state NEW -j ACCEPT
COMMIT
`

// emptyTables takes out of saved what a table is when nobody has put anything in
// it, which is all that the legacy backend can be brought back to.
func emptyTables(saved string) string {
	var out strings.Builder
	for _, backend := range strings.SplitAfter(saved, "== ") {
		if !strings.HasPrefix(backend, "iptables-legacy") && !strings.HasPrefix(backend, "ip6tables-legacy") {
			out.WriteString(backend)
			continue
		}
		for _, table := range strings.SplitAfter(backend, "COMMIT\n") {
			if i := strings.Index(table, "*"); i >= 0 && !strings.Contains(table, "\n-A") &&
				!strings.Contains(table, " - [") && !strings.Contains(table, " DROP ") {
				table = table[:i]
			}
			out.WriteString(table)
		}
	}
	return out.String()
}

func TestCleanup(t *testing.T) {
	eachIPTables(t, func(t *testing.T, v variant) {
		for name, there := range map[string]struct{ foreign, old bool }{
			"fresh":                   {false, false},
			"foreign rules":           {true, false},
			"old kube-proxy":          {false, true},
			"foreign, old kube-proxy": {true, true},
		} {
			t.Run(name, func(t *testing.T) {
				newNode(t)
				if there.foreign {
					rules := foreign
					if v.ipv6 {
						rules = strings.Replace(rules, "10.244.0.0/16", "fd44::/16", 1)
					}
					feed(t, rules, v.command+"-restore", "--noflush")
					output(t, "ipset", "create", "SLUICE4-FOREIGN", "hash:ip")
					output(t, "ipset", "add", "SLUICE4-FOREIGN", "10.0.0.1")
					output(t, v.command, "-P", "FORWARD", "DROP")
				}
				before := saved(t)
				testCleanup(t, v, there.old, before)
			})
		}
	})
}

func testCleanup(t *testing.T, v variant, old bool, before string) {
	check(t, Cleanup(t.Context()))
	if diff := cmp.Diff(before, saved(t)); diff != "" {
		t.Errorf("cleaning up nothing is not nothing (-before +after):\n%s", diff)
	}
	if old {
		feed(t, userspaceMode, v.command+"-restore", "--noflush")
	}
	s := v.iptables()
	for range 2 {
		plan := verifyPlan(v.ipv6)
		plan.Refuse = append(plan.Refuse, udp(netip.AddrPortFrom(unspecified(v.ipv6), 30053)))
		syncPlan(t, s, plan)
		s = v.iptables() // as after a crash
	}
	check(t, Cleanup(t.Context()))
	after := saved(t)
	if old && !strings.Contains(before, "*") && !strings.Contains(v.command, "legacy") {
		// The table was made by kube-proxy, not by us: it stays, empty.
		after = strings.ReplaceAll(after, emptyNFT, "")
	}
	if diff := cmp.Diff(emptyTables(before), emptyTables(after)); diff != "" {
		t.Errorf("left behind (-before +after):\n%s", diff)
	}
	check(t, Cleanup(t.Context()))
	check(t, Cleanup(t.Context()))
}

const emptyNFT = `*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
COMMIT
`

// TestCleanupOfBothBackends has four steerers at once.
func TestCleanupOfBothBackends(t *testing.T) {
	newNode(t)
	before := saved(t)
	for _, command := range []string{"iptables-nft", "iptables-legacy", "ip6tables-nft", "ip6tables-legacy"} {
		s := &IPTables{Command: command, IPv6: strings.HasPrefix(command, "ip6")}
		syncPlan(t, s, Plan{TCPPort: 40000, TCP: append(manyTCP(false, 3), manyTCP(true, 3)...)})
	}
	check(t, Cleanup(t.Context()))
	if diff := cmp.Diff(emptyTables(before), emptyTables(saved(t))); diff != "" {
		t.Errorf("left behind (-before +after):\n%s", diff)
	}
}

// TestCleanupKeepsWhatCameLater has others use the tables that we made.
func TestCleanupKeepsWhatCameLater(t *testing.T) {
	for what, args := range map[string][]string{
		"a rule":   {"-t", "nat", "-A", "POSTROUTING", "-j", "MASQUERADE"},
		"a chain":  {"-t", "nat", "-N", "OTHER"},
		"a policy": {"-P", "FORWARD", "DROP"},
	} {
		t.Run(what, func(t *testing.T) {
			var want string
			t.Run("without us", func(t *testing.T) {
				newNode(t)
				output(t, "iptables-nft", args...)
				want = saved(t)
			})
			newNode(t)
			syncPlan(t, &IPTables{Command: "iptables-nft"}, Plan{})
			output(t, "iptables-nft", args...)
			check(t, Cleanup(t.Context()))
			if diff := cmp.Diff(want, saved(t)); diff != "" {
				t.Errorf("after Cleanup (-want +got):\n%s", diff)
			}
		})
	}
}

// TestOldModeIsRemoved starts where kube-proxy's userspace mode has been, in our
// backend or in the other, beside kube-proxy of another mode.
func TestOldModeIsRemoved(t *testing.T) {
	eachIPTables(t, func(t *testing.T, v variant) {
		other := strings.Replace(v.command, "nft", "legacy", 1)
		if other == v.command {
			other = strings.Replace(v.command, "legacy", "nft", 1)
		}
		for _, there := range []string{v.command, other} {
			t.Run(there, func(t *testing.T) {
				newNode(t)
				rules := strings.Replace(foreign, "10.244.0.0/16", podNet(v.ipv6).String(), 1)
				feed(t, rules, there+"-restore", "--noflush")
				s := v.iptables()
				syncPlan(t, s, Plan{})
				want := sorted(saved(t))

				feed(t, userspaceMode, there+"-restore", "--noflush")
				s = v.iptables()
				syncPlan(t, s, Plan{})
				if diff := cmp.Diff(want, sorted(saved(t))); diff != "" {
					t.Errorf("after the first Sync (-want +got):\n%s", diff)
				}
				verified(t, s, true, "after Sync")
			})
		}
	})
}
