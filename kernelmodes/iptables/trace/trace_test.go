package trace

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func ap(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

var node = Node{Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("2001:db8::10")}}

// TestTrace walks through small sets of rules, each with what a packet becomes by it.
func TestTrace(t *testing.T) {
	outside := Packet{Protocol: "tcp", Src: ap("203.0.113.9:40000"), Dst: ap("10.96.0.80:80"), In: "eth0"}
	here := Packet{Protocol: "udp", Src: ap("192.0.2.10:40000"), Dst: ap("192.0.2.10:53")}
	six := Packet{Protocol: "tcp", Src: ap("[2001:db8::9]:40000"), Dst: ap("[2001:db8:96::1]:80"), In: "eth0"}
	for _, test := range []struct {
		name   string
		rules  string
		packet Packet
		want   []string // Outcome.String
		notes  string
	}{
		{"nothing", "", outside, []string{"100% forwarded to 10.96.0.80:80"}, ""},
		{"policy", "*filter\n:FORWARD DROP [0:0]", outside, []string{"100% dropped"}, ""},
		{"policy of another hook", "*filter\n:INPUT DROP [0:0]", outside, []string{"100% forwarded to 10.96.0.80:80"}, ""},
		{
			"to the node", "*filter\n:INPUT DROP [0:0]\n-A INPUT -p udp --dport 53 -j ACCEPT", here,
			[]string{"100% delivered here to 192.0.2.10:53"}, "",
		},
		{"loopback", "*filter\n-A INPUT -i lo -j REJECT", here, []string{"100% rejected"}, ""},
		{"sent here", "*nat\n-A PREROUTING -j DNAT --to-destination 10.1.1.1:1\n-A OUTPUT -p udp -j DNAT --to-destination 10.2.2.2", here,
			[]string{"100% forwarded to 10.2.2.2:53"}, ""},
		{"chance", "*nat\n:A - [0:0]\n-A PREROUTING -j A\n-A A -m statistic --mode random --probability 0.25000000000 -j DNAT --to-destination 10.1.1.1:1\n-A A -p tcp -j DNAT --to-destination 10.1.1.2:1", outside,
			[]string{"75% forwarded to 10.1.1.2:1", "25% forwarded to 10.1.1.1:1"}, ""},
		{"return", "*nat\n:A - [0:0]\n-A PREROUTING -j A\n-A PREROUTING -j DNAT --to-destination 10.1.1.3:1\n-A A -s 203.0.113.0/24 -j RETURN\n-A A -j DNAT --to-destination 10.1.1.1:1", outside,
			[]string{"100% forwarded to 10.1.1.3:1"}, ""},
		{"goto", "*nat\n:A - [0:0]\n:B - [0:0]\n-A PREROUTING -j A\n-A A -g B\n-A A -j DNAT --to-destination 10.1.1.1:1\n-A B -j RETURN", outside,
			[]string{"100% forwarded to 10.96.0.80:80"}, ""},
		{
			"mask", "*nat\n-A PREROUTING -d 0.0.0.16/0.0.0.63 -j DNAT --to-destination 10.1.1.1:1", outside,
			[]string{"100% forwarded to 10.1.1.1:1"}, "",
		},
		{
			"another mask", "*nat\n-A PREROUTING -d 0.0.0.17/0.0.0.63 -j DNAT --to-destination 10.1.1.1:1", outside,
			[]string{"100% forwarded to 10.96.0.80:80"}, "",
		},
		{
			"IPv6",
			"*nat\n-A PREROUTING -d ::1/::3f -p tcp -m tcp --dport 80:81 -j DNAT --to-destination [2001:db8:244::1]:8080", six,
			[]string{"100% forwarded to [2001:db8:244::1]:8080"}, "",
		},
		{"not", "*filter\n-A FORWARD ! -s 203.0.113.9/32 -j DROP\n-A FORWARD -m comment --comment \"-j DROP\" ! -d 10.96.0.0/16 -j DROP", outside, []string{"100% forwarded to 10.96.0.80:80"}, ""},
		{"state", "*nat\n-A PREROUTING -p tcp -j DNAT --to-destination 10.1.1.1:1\n*filter\n-A FORWARD -m conntrack ! --ctstate DNAT -j DROP\n-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j DROP\n-A FORWARD -m conntrack --ctstate NEW -j REJECT", outside,
			[]string{"100% rejected"}, ""},
		{"mark", "*nat\n-A PREROUTING -j MARK --set-xmark 0x4000/0x4000\n-A POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN\n-A POSTROUTING -j MARK --set-xmark 0x4000/0x0\n-A POSTROUTING -m mark --mark 0x0/0x4000 -j MASQUERADE", outside,
			[]string{"100% forwarded to 10.96.0.80:80, masqueraded"}, ""},
		{"interfaces", "*filter\n-A FORWARD -i eth+ -j DROP", outside, []string{"100% dropped"}, ""},
		{
			"address types", "*filter\n-A OUTPUT -m addrtype --src-type LOCAL -m addrtype --dst-type LOCAL -j DROP", here,
			[]string{"100% dropped"}, "",
		},
		{
			"redirect", "*nat\n-A PREROUTING -j REDIRECT --to-ports 9\n", outside,
			[]string{"100% delivered here to 192.0.2.10:9"}, "",
		},
		{
			"unknown match", "*filter\n-A FORWARD -m quux --quux 1 -j DROP", outside,
			[]string{"100% forwarded to 10.96.0.80:80"}, "unknown match quux --quux",
		},
		{
			"unknown target", "*filter\n-A FORWARD -j QUUX", outside, []string{"100% forwarded to 10.96.0.80:80"},
			"unknown target QUUX",
		},
		{
			"sets", "*filter\n-A FORWARD -m set --match-set S dst,dst -j DROP", outside,
			[]string{"100% forwarded to 10.96.0.80:80"}, "unknown match set --match-set",
		},
		{"circle", "*filter\n:A - [0:0]\n-A FORWARD -j A\n-A A -j A", outside, []string{"100% walks in circles"}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			rules, err := Parse(test.rules)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, o := range rules.Trace(node, test.packet) {
				got = append(got, o.String())
				if notes := strings.Join(o.Notes, "; "); notes != test.notes {
					t.Errorf("notes %q, want %q", notes, test.notes)
				}
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// TestSets: members are asked for with the packet as it is then.
func TestSets(t *testing.T) {
	rules, err := Parse("*nat\n-A PREROUTING -m set --match-set SLUICE4-ALIVE src -j OURS\n" +
		"-A OURS -m set --match-set S dst,dst -j REDIRECT --to-ports 9\n")
	if err != nil {
		t.Fatal(err)
	}
	p := Packet{Protocol: "tcp", Src: ap("203.0.113.9:40000"), Dst: ap("10.96.0.80:80"), In: "eth0"}
	n := node
	n.InSet = func(set, dirs string, p Packet) bool {
		return set == "S" && dirs == "dst,dst" && p.Dst == ap("10.96.0.80:80")
	}
	if got := rules.Trace(n, p); len(got) != 1 || got[0].Fate != Here || len(got[0].Steps) != 2 {
		t.Errorf("got %v", got)
	}
}

// TestParse: what is no dump is refused, by line; nothing makes it panic.
func TestParse(t *testing.T) {
	if _, err := Parse("*nat\n-A PREROUTING -j ACCEPT\n-D PREROUTING 1\n"); err == nil || !strings.Contains(err.Error(), "line 3") {
		t.Errorf("Parse = %v, want an error about line 3", err)
	}
}

// FuzzParse: no text makes parsing or walking fail.
func FuzzParse(f *testing.F) {
	f.Add("*nat\n:A - [0:0]\n-A PREROUTING ! -d 10.0.0.0/8 -p tcp -m tcp --dport 1:2 -m comment --comment \"a \\\" b\" -j A\nCOMMIT\n")
	f.Add("*filter\n-A FORWARD -m mark --mark 0x1/0x -m statistic --probability x -j MARK --set-xmark\n")
	f.Add("*nat\n-A PREROUTING -s 1.2.3.4/255.0.0.x -j DNAT --to-destination\n")
	f.Fuzz(func(t *testing.T, text string) {
		rules, err := Parse(text)
		if err != nil {
			return
		}
		if strings.Count(text, "statistic") > 8 || strings.Count(text, "-A ") > 50 {
			return // ways multiply
		}
		sum := 0.0
		for _, o := range rules.Trace(node, Packet{Protocol: "tcp", Src: ap("203.0.113.9:1"), Dst: ap("10.0.0.1:1"), In: "eth0"}) {
			sum += o.Probability
		}
		if sum < 0.999 || sum > 1.001 {
			t.Errorf("probabilities add up to %v", sum)
		}
	})
}
