package balancer

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/sluice-lb/sluice/lb"
)

// loopNode has an address of its own, and serves node ports at all.
var loopNode = lb.Node{
	Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("2001:db8::10")},
	NodePorts: []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()},
}

// looping returns a service with ready backends.
func looping(name string, p lb.Protocol, addresses, backends []string) *lb.Service {
	s := &lb.Service{ID: lb.ID{Namespace: "test", Name: name, Protocol: p}}
	for _, a := range addresses {
		addr := netip.MustParseAddrPort(a)
		kind := lb.ClusterIP
		if addr.Addr().IsUnspecified() {
			kind = lb.NodePort
		}
		s.IPv6 = addr.Addr().Is6()
		s.Addresses = append(s.Addresses, lb.Address{Addr: addr, Kind: kind})
	}
	for _, b := range backends {
		s.Backends = append(s.Backends, lb.Backend{Addr: netip.MustParseAddrPort(b), Ready: true, Serving: true})
	}
	return s
}

// left returns the backends of each service that are left out.
func left(t *lb.Table) (out []string) {
	for i := range t.Len() {
		for _, b := range t.At(i).Looping() {
			out = append(out, fmt.Sprint(t.At(i).Name, " ", b))
		}
	}
	slices.Sort(out)
	return out
}

// What is left out gets no connection, and affinity to it ends; the rest of the service is served.
func TestLoopIsNotPicked(t *testing.T) {
	a := looping("a", lb.TCP, []string{"10.96.0.1:80"}, []string{"10.96.0.2:80", "10.0.0.1:80"})
	a.AffinityTimeout = 1000
	flow := Flow{Frontend: lb.Frontend{Protocol: lb.TCP, Addr: a.Addresses[0].Addr}, Client: netip.MustParseAddr("192.0.2.1")}
	table, _, _ := new(lb.Table).Next([]*lb.Service{a}, loopNode)
	var b Balancer
	b.Update(table)
	first, err := b.Pick(flow)
	if err != nil {
		t.Fatal(err)
	}
	other := looping("b", lb.TCP, []string{first.Backend().String()}, nil) // takes the address of the backend
	table, delta, _ := table.Next([]*lb.Service{a, other}, loopNode)
	if len(delta.Changed) != 1 || delta.Changed[0].New.Name != "a" || delta.Changed[0].Addresses {
		t.Errorf("changed: %+v, want the backends of a", delta.Changed)
	}
	b.Update(table)
	if first.Live() {
		t.Error("a flow may stay at what leads back")
	}
	for range 4 {
		if c, err := b.Pick(flow); err != nil || c.Backend() == first.Backend() {
			t.Fatalf("picked %v, %v", c.Backend(), err)
		}
	}
	table, _, _ = table.Next([]*lb.Service{a}, loopNode)
	b.Update(table)
	if got := left(table); got != nil {
		t.Errorf("left out %q after the other service has gone", got)
	}
}
