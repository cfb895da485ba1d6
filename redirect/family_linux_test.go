package redirect

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-lb/sluice/lb"
)

func addr(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

func frontend(p lb.Protocol, s string) lb.Frontend { return lb.Frontend{Protocol: p, Addr: addr(s)} }

func prefixes(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// addrsByValue has cmp compare addresses with ==.
var addrsByValue = cmp.Options{
	cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
}

func TestUpdateFamily(t *testing.T) {
	plan := Plan{
		TCPPort: 40000,
		TCP: []netip.AddrPort{addr("10.96.0.2:80"), addr("[fd96::1]:80"), addr("10.96.0.1:80"),
			addr("[::ffff:10.96.0.1]:80")},
		Ported: []Ported{
			{frontend(lb.UDP, "[fd96::a]:53"), 40002},
			{frontend(lb.UDP, "10.96.0.10:53"), 40001},
			{frontend(lb.UDP, "10.96.0.10:53"), 40001},
		},
		Accept: []lb.Frontend{frontend(lb.TCP, "0.0.0.0:30080"), frontend(lb.TCP, "10.1.0.1:30080"), frontend(lb.TCP,
			"[::]:30080")},
		Refuse: []lb.Frontend{frontend(lb.UDP, "10.96.0.9:1"), frontend(lb.TCP, "10.96.0.9:1"), frontend(lb.TCP,
			"10.96.0.9:1")},
		Drop: []lb.Frontend{frontend(lb.UDP, "[::]:30081"), frontend(lb.TCP, "[fd96::9]:1")},
		DropOutside: []lb.Frontend{frontend(lb.TCP, "0.0.0.0:30080"), frontend(lb.TCP, "10.96.0.2:80"), frontend(lb.TCP,
			"10.96.0.2:80")},
		Inside: prefixes("10.244.1.7/24", "fd44::7/64", "::ffff:10.244.0.0/120", "10.244.1.0/24"),
		Restricted: []Restricted{
			{frontend(lb.TCP, "10.96.0.2:80"), prefixes("10.0.0.1/8", "fd00::/8", "10.0.0.0/8")},
			{frontend(lb.TCP, "10.96.0.1:80"), prefixes("fd00::/8")},
			{frontend(lb.UDP, "10.96.0.10:53"), prefixes("10.0.0.0/8", "0.0.0.0/0")},
			{frontend(lb.TCP, "[fd96::1]:80"), prefixes("0.0.0.0/0", "fd00::/8")},
		},
	}
	inside := map[bool][]netip.Prefix{false: prefixes("10.244.0.0/24", "10.244.1.0/24"), true: prefixes("fd44::/64")}
	want := map[bool][]Entry{
		false: {
			{Frontend: frontend(lb.TCP, "10.1.0.1:30080"), Action: Accept},
			{Frontend: frontend(lb.TCP, "10.96.0.1:80"), Action: Redirect, Sources: []netip.Prefix{}},
			{Frontend: frontend(lb.TCP, "10.96.0.2:80"), Action: Redirect, DropOutside: true, Sources: prefixes("10.0.0.0/8")},
			{Frontend: frontend(lb.TCP, "10.96.0.9:1"), Action: Refuse},
			{Frontend: frontend(lb.TCP, "0.0.0.0:30080"), Action: Accept, DropOutside: true},
			{Frontend: frontend(lb.UDP, "10.96.0.9:1"), Action: Refuse},
			{Frontend: frontend(lb.UDP, "10.96.0.10:53"), Action: Redirect, Port: 40001},
		},
		true: {
			{Frontend: frontend(lb.TCP, "[fd96::1]:80"), Action: Redirect, Sources: prefixes("fd00::/8")},
			{Frontend: frontend(lb.TCP, "[fd96::9]:1"), Action: Drop},
			{Frontend: frontend(lb.TCP, "[::]:30080"), Action: Accept},
			{Frontend: frontend(lb.UDP, "[fd96::a]:53"), Action: Redirect, Port: 40002},
			{Frontend: frontend(lb.UDP, "[::]:30081"), Action: Drop},
		},
	}
	for ipv6, want := range want {
		got, err := plan.Update().family(ipv6)
		check(t, err)
		entries := slices.Collect(maps.Values(byFrontend(got.come)))
		slices.SortFunc(entries, compareEntry)
		if diff := cmp.Diff(want, entries, addrsByValue); diff != "" {
			t.Errorf("family(%v) (-want +got):\n%s", ipv6, diff)
		}
		if diff := cmp.Diff(Host{TCPPort: 40000, Inside: inside[ipv6], ServiceCIDRs: []netip.Prefix{}}, got.host, addrsByValue); diff != "" {
			t.Errorf("host of family(%v) (-want +got):\n%s", ipv6, diff)
		}
	}
}

func TestUpdateContradictions(t *testing.T) {
	dns := frontend(lb.UDP, "10.96.0.10:53")
	web := frontend(lb.TCP, "10.96.0.1:80")
	node := frontend(lb.UDP, "0.0.0.0:30053")
	list := func(f ...lb.Frontend) []lb.Frontend { return f }
	for want, p := range map[string]Plan{
		"no proxy port":               {TCP: []netip.AddrPort{addr("10.96.0.1:80")}},
		"UDP 10.96.0.10:53: no":       {Ported: []Ported{{dns, 0}}},
		"two proxy ports":             {Ported: []Ported{{dns, 1}, {dns, 2}}},
		"redirected and refused":      {Ported: []Ported{{dns, 1}}, Refuse: list(dns)},
		"TCP 10.96.0.1:80: both":      {TCPPort: 1, TCP: []netip.AddrPort{addr("10.96.0.1:80")}, Refuse: list(web)},
		"redirected and dropped":      {TCPPort: 1, TCP: []netip.AddrPort{addr("[::ffff:10.96.0.1]:80")}, Drop: list(web)},
		"redirected and accepted":     {Ported: []Ported{{dns, 1}}, Accept: list(dns)},
		"accepted and refused":        {Accept: list(node), Refuse: list(node)},
		"accepted and dropped":        {Accept: list(node), Drop: list(node)},
		"refused and dropped":         {Refuse: list(node), Drop: list(node)},
		"only UDP and SCTP":           {Ported: []Ported{{web, 1}}},
		"no protocol, address or":     {Refuse: list(lb.Frontend{Protocol: lb.TCP})},
		"TCP invalid AddrPort: no":    {TCPPort: 1, TCP: []netip.AddrPort{{}}},
		"TCP 10.96.0.1:0: no":         {TCPPort: 1, TCP: []netip.AddrPort{addr("10.96.0.1:0")}},
		"invalid 10.96.0.1:1: no":     {DropOutside: list(lb.Frontend{Addr: addr("10.96.0.1:1")})},
		"listened on, not redirected": {TCPPort: 1, TCP: []netip.AddrPort{addr("0.0.0.0:30080")}},
		"UDP 0.0.0.0:30053: a":        {Ported: []Ported{{node, 1}}},
		"cannot be restricted":        {Restricted: []Restricted{{Frontend: node}}},
		"not valid":                   {Inside: []netip.Prefix{{}}},
		"80: prefix":                  {Restricted: []Restricted{{web, []netip.Prefix{{}}}}},
	} {
		part, err := p.Update().family(false)
		if err == nil {
			err = new(steerer).fold(true, part)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
