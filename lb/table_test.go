package lb

import (
	"net/netip"
	"slices"
	"testing"
)

// Tables may share slices, so that NewTable must not write to them.
func TestNewTableLeavesItsInputAlone(t *testing.T) {
	input := func() []Service {
		s := echo(1, 2, 3)
		s.Frontends = append(s.Frontends, netip.MustParseAddrPort("[::ffff:10.0.0.2]:80"), front, netip.MustParseAddrPort("10.0.0.3:80"))
		s.Backends[0].Addr = netip.AddrPortFrom(s.Backends[0].Addr.Addr(), 0)
		s.Backends[1].Addr = netip.MustParseAddrPort("[::ffff:10.1.0.2]:8080")
		return []Service{s}
	}
	services, want := input(), input()
	first, err := NewTable(services)
	if err == nil {
		t.Error("accepted a port 0 and a repeated frontend")
	}
	if !slices.Equal(services[0].Frontends, want[0].Frontends) || !slices.Equal(services[0].Backends, want[0].Backends) {
		t.Errorf("changed its input to %v", services[0])
	}
	s := first.Services()[0]
	if got, want := s.Frontends, []netip.AddrPort{front, netip.MustParseAddrPort("10.0.0.2:80"), netip.MustParseAddrPort("10.0.0.3:80")}; !slices.Equal(got, want) {
		t.Errorf("frontends: got %v, want %v", got, want)
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
	s, ok := mustTable(t, services).Service(services[0].ID)
	if !ok || &s.Backends[0] != &services[0].Backends[0] || &s.Frontends[0] != &services[0].Frontends[0] {
		t.Error("copied a slice it could have kept")
	}
}

func TestRepeatedBackendsInLongLists(t *testing.T) {
	for _, n := range []int{2, 31, 32, 33, 1000} {
		s := echo(slices.Concat(numbers(n), []int{n - 1, 0})...)
		table, err := NewTable([]Service{s})
		if err == nil {
			t.Errorf("%d backends: accepted two of them twice", n)
		}
		if got := table.Services()[0].Backends; !slices.Equal(got, echo(numbers(n)...).Backends) {
			t.Errorf("%d backends: got %d of them", n, len(got))
		}
	}
}

func TestProtocolsHaveFrontendsOfTheirOwn(t *testing.T) {
	var services []Service
	for _, p := range []Protocol{TCP, UDP, SCTP} {
		s := echo(1)
		s.Protocol = p
		services = append(services, s)
	}
	table := mustTable(t, services)
	for _, p := range []Protocol{TCP, UDP, SCTP} {
		if s, ok := table.Lookup(Frontend{p, front}); !ok || s.Protocol != p {
			t.Errorf("%s: got %v", p, s)
		}
	}
}
