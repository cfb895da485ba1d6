package lb

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"
)

func prefixes(texts ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// Tables may share slices, so that NewTable must not write to them.
func TestNewTableLeavesItsInputAlone(t *testing.T) {
	second, third := netip.MustParseAddrPort("10.0.0.2:80"), netip.MustParseAddrPort("10.0.0.3:80")
	input := func() []Service {
		s := echo(1, 2, 3)
		s.Addresses = append(s.Addresses,
			Address{Addr: netip.MustParseAddrPort("[::ffff:10.0.0.2]:80"), Sources: prefixes("192.0.2.0/24")},
			Address{Addr: front},
			Address{Addr: third, Sources: prefixes("198.51.100.0/24", "2001:db8::/32", "::ffff:203.0.113.0/120")})
		s.Backends[0].Addr = netip.AddrPortFrom(s.Backends[0].Addr.Addr(), 0)
		s.Backends[1].Addr = netip.MustParseAddrPort("[::ffff:10.1.0.2]:8080")
		return []Service{s}
	}
	services := input()
	first, err := NewTable(refs(services), Node{})
	if err == nil {
		t.Error("accepted a port 0 and a repeated address")
	}
	if !reflect.DeepEqual(services, input()) {
		t.Errorf("changed its input to %v", services[0])
	}
	s := first.Services()[0]
	want := []Address{
		{Addr: front},
		{Addr: second, Sources: prefixes("192.0.2.0/24")},
		{Addr: third, Sources: prefixes("198.51.100.0/24", "203.0.113.0/24")},
	}
	if got := s.Addresses; !reflect.DeepEqual(got, want) {
		t.Errorf("addresses: got %v, want %v", got, want)
	}
	if got, want := s.Backends, echo(2, 3).Backends; !slices.Equal(got, want) {
		t.Errorf("backends: got %v, want %v", got, want)
	}
	if got, want := s.Eligible(), s.Backends; !slices.Equal(got, want) {
		t.Errorf("eligible: got %v, want %v", got, want)
	}
}

func TestNewTableSharesWhatItDoesNotChange(t *testing.T) {
	services := []Service{echo(1, 2)}
	services[0].Addresses[0].Sources = prefixes("203.0.113.0/24", "192.0.2.0/24")
	s, ok := mustTable(t, services).Service(services[0].ID)
	if !ok || &s.Backends[0] != &services[0].Backends[0] || &s.Addresses[0] != &services[0].Addresses[0] {
		t.Error("copied a slice it could have kept")
	}
}

func TestRepeatedBackendsInLongLists(t *testing.T) {
	for _, n := range []int{2, 31, 32, 33, 1000} {
		s := echo(slices.Concat(numbers(n), []int{n - 1, 0})...)
		table, err := NewTable(refs([]Service{s}), Node{})
		if err == nil {
			t.Errorf("%d backends: accepted two of them twice", n)
		}
		if got := table.Services()[0].Backends; !slices.Equal(got, echo(numbers(n)...).Backends) {
			t.Errorf("%d backends: got %d of them", n, len(got))
		}
	}
}

func TestProtocolsHaveAddressesOfTheirOwn(t *testing.T) {
	var services []Service
	for _, p := range []Protocol{TCP, UDP, SCTP} {
		s := echo(1)
		s.Protocol = p
		services = append(services, s)
	}
	table := mustTable(t, services)
	for _, p := range []Protocol{TCP, UDP, SCTP} {
		if s, a, ok := table.Lookup(Frontend{p, front}); !ok || s.Protocol != p || a != &s.Addresses[0] {
			t.Errorf("%s: got %v, %v", p, s, a)
		}
	}
}

func TestLost(t *testing.T) {
	at := func(name string, addrs ...string) Service {
		s := Service{ID: ID{Name: name, Protocol: TCP}}
		for _, a := range addrs {
			s.Addresses = append(s.Addresses, Address{Addr: netip.MustParseAddrPort(a)})
		}
		return s
	}
	const a, b, c, nodePort = "10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80", "0.0.0.0:80"
	kept := at("kept", a)
	for _, test := range []struct {
		name     string
		old, now []Service
		want     []Service
	}{
		{"nothing changes", []Service{kept}, []Service{kept}, nil},
		{"equal, not the same", []Service{kept}, []Service{at("kept", a)}, nil},
		{"a service goes", []Service{kept, at("old", b, c)}, []Service{kept}, []Service{at("old", b, c)}},
		{"an address goes", []Service{at("s", a, b)}, []Service{at("s", b)}, []Service{at("s", a)}},
		{"an address moves", []Service{at("s", a, b)}, []Service{at("other", a), at("s", b)}, nil},
		{"a node port is no owner of its port's exact addresses", []Service{at("s", a)}, []Service{at("s", nodePort)}, []Service{at("s", a)}},
		{"a node port goes", []Service{at("s", a, nodePort)}, []Service{at("s", a)}, []Service{at("s", nodePort)}},
		{"all go", []Service{kept}, nil, []Service{kept}},
	} {
		var got []Service
		for _, s := range mustTable(t, test.old).Services() {
			if left := mustTable(t, test.now).Lost(s); left != nil {
				got = append(got, *left)
			}
		}
		if !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: %v leave, want %v", test.name, got, test.want)
		}
	}
}
