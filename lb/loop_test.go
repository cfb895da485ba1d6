package lb

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// loopNode has an address of its own, and serves node ports at all.
var loopNode = Node{
	Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("2001:db8::10")},
	NodePorts: []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()},
}

// looping returns a service with ready backends.
func looping(name string, p Protocol, addresses, backends []string) *Service {
	s := &Service{ID: ID{Namespace: "test", Name: name, Protocol: p}}
	for _, a := range addresses {
		addr := netip.MustParseAddrPort(a)
		kind := ClusterIP
		if addr.Addr().IsUnspecified() {
			kind = NodePort
		}
		s.IPv6 = addr.Addr().Is6()
		s.Addresses = append(s.Addresses, Address{Addr: addr, Kind: kind})
	}
	for _, b := range backends {
		s.Backends = append(s.Backends, Backend{Addr: netip.MustParseAddrPort(b), Ready: true, Serving: true})
	}
	return s
}

// left returns the backends of each service that are left out.
func left(t *Table) (out []string) {
	for i := range t.Len() {
		for _, b := range t.At(i).Looping() {
			out = append(out, fmt.Sprint(t.At(i).Name, " ", b))
		}
	}
	slices.Sort(out)
	return out
}

func TestLoopsAreLeftOut(t *testing.T) {
	list := func(s ...string) []string { return s }
	for _, tt := range []struct {
		name     string
		services []*Service
		want     []string
	}{
		{"its own address", []*Service{looping("a", TCP, list("10.96.0.1:80"), list("10.96.0.1:80", "10.0.0.1:80"))},
			list("a 10.96.0.1:80")},
		{"its own address with another port", []*Service{looping("a", TCP, list("10.96.0.1:80"), list("10.96.0.1:81"))}, nil},
		{"its own address of another protocol", []*Service{looping("a", TCP, list("10.96.0.1:80"), nil),
			looping("b", UDP, list("10.96.0.2:80"), list("10.96.0.1:80"))}, nil},
		{"a ring", []*Service{looping("a", SCTP, list("10.96.0.1:80"), list("10.96.0.2:80")),
			looping("b", SCTP, list("10.96.0.2:80"), list("10.96.0.1:80"))}, list("a 10.96.0.2:80", "b 10.96.0.1:80")},
		{"a chain costs a hop, too", []*Service{looping("a", TCP, list("10.96.0.1:80"), list("10.96.0.2:80")),
			looping("b", TCP, list("10.96.0.2:80"), list("10.0.0.1:80"))}, list("a 10.96.0.2:80")},
		{"a node port at the node's address", []*Service{looping("a", UDP, list("0.0.0.0:30080"), list("192.0.2.10:30080"))},
			list("a 192.0.2.10:30080")},
		{"a node port at loopback", []*Service{looping("a", TCP, list("0.0.0.0:30080"), list("127.0.0.1:30080"))},
			list("a 127.0.0.1:30080")},
		{"the node's address, not a node port",
			[]*Service{looping("a", TCP, list("0.0.0.0:30080"), list("192.0.2.10:80"))}, nil},
		{"another node's address", []*Service{looping("a", TCP, list("0.0.0.0:30080"), list("192.0.2.11:30080"))}, nil},
		{"IPv6", []*Service{looping("a", TCP, list("[fd00::1]:80", "[::]:30080"),
			list("[fd00::1]:80", "[2001:db8::10]:30080", "[fd00::2]:80"))}, list("a [2001:db8::10]:30080", "a [fd00::1]:80")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			table, err := NewTable(tt.services, loopNode)
			if err != nil {
				t.Fatal(err)
			}
			if got := left(table); !slices.Equal(got, tt.want) {
				t.Errorf("left out %q, want %q", got, tt.want)
			}
		})
	}
}

// However a table comes about, the same is left out.
func TestLoopsOfChangesAgainstWhole(t *testing.T) {
	testbed.Sequential(t)
	r := rand.New(rand.NewPCG(1, 2))
	addr := func() string { return fmt.Sprintf("10.96.0.%d:%d", r.IntN(12), 80+r.IntN(2)) }
	table := new(Table)
	services := make([]*Service, 30)
	node := loopNode
	seen := 0
	for step := range 3000 {
		i := r.IntN(len(services))
		switch {
		case r.IntN(4) == 0:
			services[i] = nil
		default:
			name, addresses := fmt.Sprint("s", i), []string{addr()}
			if r.IntN(3) == 0 {
				addresses = append(addresses, fmt.Sprintf("0.0.0.0:%d", 30000+r.IntN(8)))
			}
			backends := []string{addr(), fmt.Sprintf("192.0.2.%d:%d", 10+r.IntN(2), 30000+r.IntN(8)), "10.0.0.1:80"}
			services[i] = looping(name, TCP, addresses, backends[r.IntN(3):])
		}
		if r.IntN(50) == 0 {
			node.Addresses = []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(10 + r.IntN(2))})}
		}
		all := slices.DeleteFunc(slices.Clone(services), func(s *Service) bool { return s == nil })
		var delta Delta
		before := table
		table, delta, _ = table.Next(all, node)
		whole, _ := NewTable(all, node)
		if got, want := left(table), left(whole); !slices.Equal(got, want) {
			t.Fatalf("step %d: left out %q, want %q", step, got, want)
		}
		seen += len(left(table))
		if delta.Whole {
			continue
		}
		for i := range table.Len() { // what is marked otherwise than before is in the delta
			is := table.At(i)
			was, ok := before.Service(is.ID)
			if !ok || was.Equal(is) {
				continue
			}
			if !slices.ContainsFunc(delta.Changed, func(c Change) bool { return c.New == is }) {
				t.Fatalf("step %d: the change of %s is not in the delta", step, is.ID)
			}
		}
	}
	if seen < 1000 {
		t.Errorf("only %d backends were left out in all: the test tests little", seen)
	}
}
