package redirect

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-lb/sluice/lb"
)

func addr(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

func frontend(p lb.Protocol, s string) lb.Frontend { return lb.Frontend{Protocol: p, Addr: addr(s)} }

func TestPlanFamily(t *testing.T) {
	plan := Plan{
		TCPPort: 40000,
		TCP:     []netip.AddrPort{addr("0.0.0.0:30080"), addr("10.96.0.2:80"), addr("[fd96::1]:80"), addr("10.96.0.1:80"), addr("[::ffff:10.96.0.1]:80")},
		Ported: []Ported{
			{frontend(lb.UDP, "[::]:30053"), 40002},
			{frontend(lb.UDP, "10.96.0.10:53"), 40001},
			{frontend(lb.UDP, "10.96.0.10:53"), 40001},
		},
		Refuse: []lb.Frontend{frontend(lb.UDP, "10.96.0.9:1"), frontend(lb.TCP, "10.96.0.9:1"), frontend(lb.TCP, "10.96.0.9:1")},
	}
	want := map[bool]Plan{
		false: {
			TCPPort: 40000,
			TCP:     []netip.AddrPort{addr("10.96.0.1:80"), addr("10.96.0.2:80"), addr("0.0.0.0:30080")},
			Ported:  []Ported{{frontend(lb.UDP, "10.96.0.10:53"), 40001}},
			Refuse:  []lb.Frontend{frontend(lb.TCP, "10.96.0.9:1"), frontend(lb.UDP, "10.96.0.9:1")},
		},
		true: {
			TCPPort: 40000,
			TCP:     []netip.AddrPort{addr("[fd96::1]:80")},
			Ported:  []Ported{{frontend(lb.UDP, "[::]:30053"), 40002}},
		},
	}
	for ipv6, want := range want {
		got, err := plan.family(ipv6)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
			t.Errorf("family(%v) (-want +got):\n%s", ipv6, diff)
		}
	}
}

func TestPlanContradictions(t *testing.T) {
	dns := frontend(lb.UDP, "10.96.0.10:53")
	for want, p := range map[string]Plan{
		"no proxy port":           {TCP: []netip.AddrPort{addr("10.96.0.1:80")}},
		"UDP 10.96.0.10:53: no":   {Ported: []Ported{{dns, 0}}},
		"two proxy ports":         {Ported: []Ported{{dns, 1}, {dns, 2}}},
		"both steered and":        {Ported: []Ported{{dns, 1}}, Refuse: []lb.Frontend{dns}},
		"TCP 10.96.0.1:80: both":  {TCPPort: 1, TCP: []netip.AddrPort{addr("10.96.0.1:80")}, Refuse: []lb.Frontend{frontend(lb.TCP, "10.96.0.1:80")}},
		"only UDP and SCTP":       {Ported: []Ported{{frontend(lb.TCP, "10.96.0.1:80"), 1}}},
		"no address":              {TCPPort: 1, TCP: []netip.AddrPort{{}}},
		"no port":                 {TCPPort: 1, TCP: []netip.AddrPort{addr("10.96.0.1:0")}},
		"invalid":                 {Refuse: []lb.Frontend{{Addr: addr("10.96.0.1:1")}}},
		"no protocol, address or": {Refuse: []lb.Frontend{{Protocol: lb.TCP}}},
	} {
		if _, err := p.family(false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("family: %v, want %q", err, want)
		}
	}
}
