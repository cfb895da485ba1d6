package config

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

func parseAddrs(list string) (out []netip.Addr) {
	for _, s := range strings.Fields(list) {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func TestNodePortAddresses(t *testing.T) {
	local := "127.0.0.1 192.0.2.10 192.0.2.11 10.244.1.1 ::1 2001:db8::10 fe80::1"
	for _, test := range []struct{ list, primary, want string }{
		{"", "", "0.0.0.0 ::"},
		{"all", "", "0.0.0.0 ::"},
		{"192.0.2.0/24,all", "", "0.0.0.0 ::"},
		{"0.0.0.0/0", "", "0.0.0.0 ::"},
		{"::/0,localhost", "", "127.0.0.1 ::"},
		{"192.0.2.0/24", "", "192.0.2.10 192.0.2.11 ::"},
		{"2001:db8::/32", "", "0.0.0.0 2001:db8::10"},
		{"192.0.2.0/24,localhost", "", "127.0.0.1 192.0.2.10 192.0.2.11 ::1"},
		{"192.0.2.11/24 , 2001:db8::/32", "", "192.0.2.10 192.0.2.11 2001:db8::10"},
		{"localhost", "", "127.0.0.1 ::1"},
		{"primary", "", "192.0.2.10 2001:db8::10"},
		{"primary", "192.0.2.11", "192.0.2.11 2001:db8::10"},
		{"primary,192.0.2.0/31", "198.51.100.1", "192.0.2.10 2001:db8::10"}, // not an address of this host
		{"primary", "0.0.0.0 192.0.2.11 2001:db8::10 192.0.2.10", "192.0.2.11 2001:db8::10"},
		{"198.51.100.0/24", "", "::"},
		{"198.51.100.0/24,2001:db8:1::/64", "", ""},
	} {
		n, err := parseNodePorts(strings.FieldsFunc(test.list, func(r rune) bool { return r == ',' }))
		if err != nil {
			t.Errorf("%q: %v", test.list, err)
			continue
		}
		if got := n.Resolve(parseAddrs(local), parseAddrs(test.primary)); fmt.Sprint(got) != fmt.Sprint(parseAddrs(test.want)) {
			t.Errorf("%q with primary %q = %v, want %s", test.list, test.primary, got, test.want)
		}
	}
	for _, bad := range []string{"192.0.2.1", "node", "10.0.0.0/40", ""} {
		if _, err := parseNodePorts([]string{bad}); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

// TestNodePortsByDefault: without a list they are where kube-proxy has them in each mode.
func TestNodePortsByDefault(t *testing.T) {
	local := parseAddrs("127.0.0.1 192.0.2.10 192.0.2.11 ::1 2001:db8::10 2001:db8::11")
	for args, want := range map[string]string{
		"--proxy-mode=nftables":                                     "192.0.2.10 2001:db8::10",
		"--proxy-mode=nftables --nodeport-addresses=all":            "0.0.0.0 ::",
		"--proxy-mode=nftables --nodeport-addresses=192.0.2.11/32":  "192.0.2.11 ::",
		"--proxy-mode=iptables":                                     "0.0.0.0 ::",
		"--proxy-mode=ipvs":                                         "0.0.0.0 ::",
		"--proxy-mode=userspace --packet-filter=nftables":           "0.0.0.0 ::",
		"--proxy-mode=userspace --nodeport-addresses=192.0.2.11/32": "192.0.2.11 ::",
	} {
		n := parse(t, strings.Fields(args)...).DataPath.NodePorts
		if got := n.Resolve(local, nil); fmt.Sprint(got) != fmt.Sprint(parseAddrs(want)) {
			t.Errorf("%s: %v, want %s", args, got, want)
		}
	}
}

// TestNodePortsNotOnLoopback: in mode iptables --iptables-localhost-nodeports=false counts more than the list, and
// the log says so; in the others it means nothing.
func TestNodePortsNotOnLoopback(t *testing.T) {
	local := parseAddrs("127.0.0.1 192.0.2.10 ::1")
	for _, test := range []struct{ mode, list, want string }{
		{"iptables", "127.0.0.1/32", "::"},
		{"iptables", "127.0.0.0/8,192.0.2.0/24", "192.0.2.10 ::"},
		{"iptables", "localhost", ""},
		{"iptables", "192.0.2.0/24", "192.0.2.10 ::"},
		{"userspace", "127.0.0.1/32", "127.0.0.1 ::"},
	} {
		c := parse(t, "--proxy-mode="+test.mode, "--nodeport-addresses="+test.list, "--iptables-localhost-nodeports=false")
		if got := c.DataPath.NodePorts.Resolve(local, nil); fmt.Sprint(got) != fmt.Sprint(parseAddrs(test.want)) {
			t.Errorf("%s, %s: %v, want %s", test.mode, test.list, got, test.want)
		}
		loopback := test.mode == "iptables" && !strings.HasPrefix(test.list, "192")
		warned := strings.Contains(strings.Join(c.Warnings, "\n"), "--nodeport-addresses has loopback addresses")
		if warned != loopback {
			t.Errorf("%s, %s: warnings %q", test.mode, test.list, c.Warnings)
		}
	}
}
