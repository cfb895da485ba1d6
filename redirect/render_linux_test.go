package redirect

import (
	"bytes"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
)

// fullPlan has every kind of frontend, in both families.
var fullPlan = Plan{
	TCPPort: 40000,
	TCP:     []netip.AddrPort{addr("10.96.0.1:443"), addr("10.96.0.2:80"), addr("192.0.2.1:30083"), addr("[fd96::1]:443")},
	Ported: []Ported{
		{frontend(lb.UDP, "10.96.0.10:53"), 40001},
		{frontend(lb.UDP, "192.0.2.1:40003"), 40003}, // has its proxy port's number
		{frontend(lb.SCTP, "10.96.0.20:3868"), 40002},
		{frontend(lb.UDP, "[fd96::a]:53"), 40001},
		{frontend(lb.SCTP, "[fd96::b]:3868"), 40004},
	},
	Local: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1"),
		netip.MustParseAddr("192.0.2.2")},
	Accept: []lb.Frontend{
		frontend(lb.TCP, "0.0.0.0:30080"), frontend(lb.UDP, "0.0.0.0:30053"), frontend(lb.TCP, "192.0.2.1:30082"),
		frontend(lb.SCTP, "0.0.0.0:30868"), frontend(lb.TCP, "[::]:30080"),
	},
	Refuse: []lb.Frontend{
		frontend(lb.TCP, "10.96.0.30:80"), frontend(lb.UDP, "10.96.0.30:53"), frontend(lb.SCTP, "10.96.0.30:3868"),
		frontend(lb.TCP, "0.0.0.0:30081"), frontend(lb.UDP, "0.0.0.0:30054"), frontend(lb.TCP, "[fd96::1e]:80"),
	},
	Drop: []lb.Frontend{
		frontend(lb.TCP, "10.96.0.40:80"), frontend(lb.UDP, "0.0.0.0:30055"),
		frontend(lb.TCP, "0.0.0.0:30083"), // which an exact frontend hides
		frontend(lb.UDP, "[fd96::28]:53"), frontend(lb.TCP, "[::]:30083"),
	},
	DropOutside: []lb.Frontend{
		frontend(lb.TCP, "10.96.0.2:80"), frontend(lb.TCP, "0.0.0.0:30080"),
		frontend(lb.UDP, "[fd96::a]:53"), frontend(lb.TCP, "[::]:30080"),
	},
	Inside: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/24"), netip.MustParsePrefix("fd44::/64")},
	Restricted: []Restricted{
		{frontend(lb.TCP, "10.96.0.1:443"), []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24"),
			netip.MustParsePrefix("203.0.113.1/32")}},
		{frontend(lb.UDP, "10.96.0.10:53"), nil},
		{frontend(lb.TCP, "[fd96::1]:443"), []netip.Prefix{netip.MustParsePrefix("2001:db8::/32")}},
	},
}

// rendered returns the rules of a plan.
func rendered(t testing.TB, s shape, plan Plan) string {
	t.Helper()
	p, err := plan.Update().family(s.ipv6)
	check(t, err)
	r := newRuleset(s, nil, nil, p.host, byFrontend(p.come))
	r.render()
	return r.String()
}

func TestRender(t *testing.T) {
	for name, c := range map[string]struct {
		shape shape
		plan  Plan
	}{
		"sets":    {shape{sets: true}, fullPlan},
		"nosets":  {shape{}, fullPlan},
		"bound":   {shape{sets: true, bind: netip.MustParseAddr("192.0.2.1")}, fullPlan},
		"sets6":   {shape{sets: true, ipv6: true}, fullPlan},
		"nosets6": {shape{ipv6: true}, fullPlan},
		"bound6":  {shape{ipv6: true, bind: netip.MustParseAddr("2001:db8::1")}, fullPlan},
		"empty":   {shape{sets: true}, Plan{}},
	} {
		t.Run(name, func(t *testing.T) {
			c.shape.prefix = chainPrefix
			testbed.Golden(t, "testdata/"+name+".rules", rendered(t, c.shape, c.plan))
		})
	}
}

// TestRenderDoesNotDependOnMembers holds what makes most changes free of processes.
func TestRenderDoesNotDependOnMembers(t *testing.T) {
	s := shape{sets: true, prefix: chainPrefix}
	a := Plan{TCPPort: 1, TCP: []netip.AddrPort{addr("10.96.0.1:80")}}
	b := Plan{
		TCPPort:     1,
		TCP:         []netip.AddrPort{addr("10.96.0.2:80")},
		Accept:      []lb.Frontend{frontend(lb.TCP, "0.0.0.0:2"), frontend(lb.TCP, "10.1.0.1:3")},
		Refuse:      []lb.Frontend{frontend(lb.TCP, "10.96.0.1:80"), frontend(lb.UDP, "0.0.0.0:4")},
		Drop:        []lb.Frontend{frontend(lb.TCP, "10.96.0.3:80"), frontend(lb.UDP, "0.0.0.0:5")},
		DropOutside: []lb.Frontend{frontend(lb.TCP, "10.96.0.2:80"), frontend(lb.TCP, "0.0.0.0:2")},
		Inside:      fullPlan.Inside,
		Restricted:  []Restricted{{frontend(lb.TCP, "10.96.0.2:80"), fullPlan.Inside}},
	}
	if diff := cmp.Diff(rendered(t, s, a), rendered(t, s, b)); diff != "" {
		t.Errorf("rules differ (-a +b):\n%s", diff)
	}
}

// TestMultiport holds that many ports without sets are few rules, none of them
// over the limit of the match.
func TestMultiport(t *testing.T) {
	var p Plan
	for i := range 100 {
		p.Ported = append(p.Ported, Ported{frontend(lb.UDP, "10.96.0.10:53"), uint16(40000 + i)})
		p.Ported[i].Frontend.Addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 1, byte(i)}), 53)
	}
	rules := rendered(t, shape{prefix: chainPrefix}, p)
	n := 0
	for line := range strings.Lines(rules) {
		if _, ports, ok := strings.Cut(line, "--dports "); ok {
			n++
			ports, _, _ = strings.Cut(ports, " ")
			if c := strings.Count(ports, ",") + 1; c > multiportMax {
				t.Errorf("%d ports in one rule", c)
			}
		}
	}
	if n != 14 { // 7 to accept and 7 to reject
		t.Errorf("%d rules for 100 ports, want 14", n)
	}
}

// TestNames holds the limits of the kernel for names.
func TestNames(t *testing.T) {
	for _, prefix := range []string{chainPrefix, probePrefix} {
		s := shape{prefix: prefix}
		for _, set := range slices.Concat(setGroups...) {
			if name := s.set(set); len(name) > 31 || !strings.HasPrefix(name, "SLUICE4-") {
				t.Errorf("set name %q of %d characters", name, len(name))
			}
		}
		for _, table := range tables {
			for _, c := range table.chains {
				if name := s.chain(c); len(name) > 28 || !removable(table.name, name) ||
					own(table.name, name) != (prefix == chainPrefix) {
					t.Errorf("chain name %q of %d characters", name, len(name))
				}
			}
		}
	}
}

func TestUndo(t *testing.T) {
	save, err := os.ReadFile("testdata/undo.save")
	check(t, err)
	testbed.Golden(t, "testdata/undo.rules", string(netfilter.Undo(save, removable)))
	if again := netfilter.Undo(bytes.ReplaceAll(save, []byte("SLUICE"), []byte("OTHER")),
		removable); bytes.Contains(again, []byte("OTHER")) {
		t.Errorf("undo touches what is not ours:\n%s", again)
	}
	if nothing := netfilter.Undo([]byte("*nat\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -j KUBE-SERVICES\nCOMMIT\n"),
		removable); nothing != nil {
		t.Errorf("undo of nothing:\n%s", nothing)
	}
}

// TestSteeredBy: what was written can be read again, whatever the shape.
func TestSteeredBy(t *testing.T) {
	for _, s := range []shape{{}, {sets: true}, {ipv6: true}, {bind: netip.MustParseAddr("192.0.2.1")}} {
		s.prefix = chainPrefix
		want := make(map[lb.Frontend]uint16)
		for _, f := range fullPlan.Ported {
			if f.Frontend.Addr.Addr().Is6() == s.ipv6 {
				want[f.Frontend] = f.Port
			}
		}
		got := steeredBy(strings.Split(rendered(t, s, fullPlan), "\n"), s.ipv6)
		if !maps.Equal(want, got) {
			t.Errorf("%+v: read %v, want %v", s, got, want)
		}
	}
}

func FuzzUndo(f *testing.F) {
	save, _ := os.ReadFile("testdata/undo.save")
	f.Add(string(save))
	f.Add("*nat\n-A x --comment \"a \\\" -j SLUICE-STEER\nCOMMIT\n-A")
	f.Fuzz(func(t *testing.T, s string) {
		for line := range strings.Lines(string(netfilter.Undo([]byte(s), removable))) {
			w := netfilter.Words(strings.TrimSuffix(line, "\n"))
			if len(w) > 0 && (w[0] == "-F" || w[0] == "-X") && !strings.HasPrefix(w[1], "SLUICE-") &&
				!strings.HasPrefix(w[1], "KUBE-") {
				t.Errorf("undo removes %q", line)
			}
		}
		steeredBy(strings.Split(s, "\n"), false)
	})
}

func TestTargetPort(t *testing.T) {
	for rule, want := range map[string]uint16{
		`-m comment --comment "sluice: to the TCP proxy" -j REDIRECT --to-ports 36833`: 36833,
		"-d 10.96.0.1/32 -p tcp -j DNAT --to-destination 192.0.2.1:31000":              31000,
		"-p tcp -j DNAT --to-destination [2001:db8::1]:31000":                          31000,
		"-p tcp -j REDIRECT --to-ports x":                                              0,
		"-p tcp -j RETURN":                                                             0,
	} {
		if _, got := destination(netfilter.Words("-A SLUICE-TCP " + rule)); got != want {
			t.Errorf("port %d, want %d, in %s", got, want, rule)
		}
	}
}
