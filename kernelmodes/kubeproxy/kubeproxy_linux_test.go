package kubeproxy

import (
	"errors"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/sluice-lb/sluice/internal/testbed"
)

func TestMain(m *testing.M) { os.Exit(testbed.Main(m)) }

// state is all rules and tables of a host, without packets counted.
const state = `for c in iptables-nft ip6tables-nft iptables-legacy ip6tables-legacy; do $c-save | grep -v '^#' | sed 's/ \[.*//'; done; nft list tables; ipset list -name`

// left is what kube-proxy leaves, by command, in nat and mangle.
const left = `$C -t nat -N KUBE-SERVICES && $C -t nat -N KUBE-SVC-ABC && $C -t nat -N KUBE-SEP-ABC && $C -t nat -N KUBE-MARK-MASQ &&
	$C -t nat -N KUBE-POSTROUTING && $C -t nat -A KUBE-SERVICES -j KUBE-SVC-ABC && $C -t nat -A KUBE-SVC-ABC -j KUBE-SEP-ABC &&
	$C -t nat -A KUBE-SEP-ABC -j KUBE-MARK-MASQ && $C -t nat -A PREROUTING -j KUBE-SERVICES &&
	$C -t nat -A POSTROUTING -j KUBE-POSTROUTING && $C -t mangle -N KUBE-PROXY-CANARY && $C -N KUBE-FORWARD && $C -A FORWARD -j KUBE-FORWARD`

// others is what there is of kubelet and of other programs.
const others = `$C -t mangle -N KUBE-IPTABLES-HINT && $C -N KUBE-FIREWALL && $C -A INPUT -j KUBE-FIREWALL && $C -t nat -N KUBE-KUBELET-CANARY && $C -t nat -N OTHER &&
	$C -t nat -A PREROUTING -j OTHER`

func commands() []string {
	return []string{"iptables-nft", "ip6tables-nft", "iptables-legacy", "ip6tables-legacy"}
}

// TestChainsAndTables: kube-proxy's chains, in both backends and families, and its tables go, and nothing of others.
// Again there is nothing to remove.
func TestChainsAndTables(t *testing.T) {
	t.Parallel()
	n := testbed.NewT(t, testbed.Config{})
	run := func(script string) string { return n.Node.Run(t, "sh", "-c", script) }
	for _, c := range commands() {
		run("C=" + c + "; " + others)
	}
	before := run(state)
	for _, c := range commands() {
		run("C=" + c + "; " + left)
	}
	run("nft add table ip kube-proxy && nft add chain ip kube-proxy a && nft add rule ip kube-proxy a accept && nft add table ip6 kube-proxy")
	got := clean(t, n)
	if want := (Removed{Chains: 7 * 4, Tables: 2}); got != want {
		t.Errorf("removed %+v, want %+v", got, want)
	}
	if after := run(state); after != before {
		t.Errorf("there is\n%s\nthere was\n%s", after, before)
	}
	if again := clean(t, n); again.Any() {
		t.Errorf("again: %+v", again)
	}
}

// TestWithoutPrograms: what iptables-nft has written is noticed and goes without it, but what others may share.
func TestWithoutPrograms(t *testing.T) {
	n := testbed.NewT(t, testbed.Config{})
	run := func(script string) string { return n.Node.Run(t, "sh", "-c", script) }
	written := func(want bool) {
		t.Helper()
		n.Node.DoT(t, func() error {
			if there, err := Written([2]bool{true, true}); there != want || err != nil {
				t.Errorf("written: %v, %v, want %v", there, err, want)
			}
			return nil
		})
	}
	path := os.Getenv("PATH")
	for _, c := range commands()[:2] {
		run("C=" + c + "; " + others)
	}
	written(false)
	before := run(state)
	for _, c := range commands()[:2] {
		run("C=" + c + "; " + left)
		written(true)
		t.Setenv("PATH", t.TempDir())
		got := clean(t, n)
		t.Setenv("PATH", path)
		if want := (Removed{Chains: 5}); got != want {
			t.Errorf("removed %+v, want %+v", got, want)
		}
		written(false)
		run("C=" + c + "; $C -t nat -F KUBE-POSTROUTING && $C -t nat -D POSTROUTING -j KUBE-POSTROUTING && " +
			"$C -t nat -X KUBE-POSTROUTING && $C -t nat -X KUBE-MARK-MASQ")
	}
	if after := run(state); after != before {
		t.Errorf("there is\n%s\nthere was\n%s", after, before)
	}
	run("nft add table ip6 kube-proxy")
	written(true)
}

// TestSharedChains: what another program's chain leads to stays, with what it is good for; and so it does without a
// kube-proxy.
func TestSharedChains(t *testing.T) {
	t.Parallel()
	n := testbed.NewT(t, testbed.Config{})
	run := func(script string) string { return n.Node.Run(t, "sh", "-c", script) }
	run("C=iptables; " + left + " && $C -t nat -N CNI-HOSTPORT && $C -t nat -A CNI-HOSTPORT -j KUBE-MARK-MASQ")
	if got := clean(t, n); got.Chains != 5 {
		t.Errorf("removed %+v, want 5 chains", got)
	}
	for range 2 {
		have := run("iptables-save -t nat")
		for _, want := range []string{"-A CNI-HOSTPORT -j KUBE-MARK-MASQ", "-A POSTROUTING -j KUBE-POSTROUTING"} {
			if !strings.Contains(have, want) {
				t.Errorf("%s is lost; there is\n%s", want, have)
			}
		}
		run("iptables -t nat -D CNI-HOSTPORT 1; iptables -t nat -A CNI-HOSTPORT -j KUBE-MARK-MASQ")
		if got := clean(t, n); got.Any() {
			t.Errorf("removed %+v", got)
		}
	}
}

// TestIPVS: the device, virtual servers and sets of mode ipvs go, and not what is for marks, excluded, or another's.
func TestIPVS(t *testing.T) {
	t.Parallel()
	n := testbed.NewT(t, testbed.Config{})
	n.Node.DoT(t, func() error {
		err := netlink.LinkAdd(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: device}})
		if errors.Is(err, syscall.EOPNOTSUPP) {
			testbed.MissingUnless(t, testbed.RequireIPVSVar, "this kernel has no dummy devices; make test-vm tests it")
		}
		return err
	})
	run := func(script string) string { return n.Node.Run(t, "sh", "-c", script) }
	run(`ip addr add 10.96.0.80/32 dev kube-ipvs0 && ipvsadm -A -t 10.96.0.80:80 -s rr && ipvsadm -A -u [2001:db8:96::80]:80 -s rr &&
		ipvsadm -A -t 192.0.2.10:9999 -s wrr && ipvsadm -A -f 77 -s lc && ipset create KUBE-CLUSTER-IP hash:ip,port &&
		ipset create KUBE-6-CLUSTER-IP hash:ip,port family inet6 && ipset create OTHER hash:ip`)
	got := clean(t, n)
	if want := (Removed{Servers: 2, Sets: 2}); got != want {
		t.Errorf("removed %+v, want %+v", got, want)
	}
	have := run("ipvsadm -Sn; ipset list -name; ip -o link")
	for text, want := range map[string]bool{
		"192.0.2.10:9999": true, "-f 77": true, "OTHER": true, "10.96.0.80": false, "2001:db8:96::80": false, "KUBE-": false, device: false,
	} {
		if strings.Contains(have, text) != want {
			t.Errorf("%s: want %v in\n%s", text, want, have)
		}
	}
}

func clean(t *testing.T, n *testbed.Testbed) (r Removed) {
	t.Helper()
	n.Node.DoT(t, func() (err error) {
		r, err = Cleanup(t.Context(), [2]bool{true, true}, []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")})
		return err
	})
	return r
}
