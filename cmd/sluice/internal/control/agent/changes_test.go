package agent

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/sluice-lb/sluice/lb"
)

// portOf returns a port of a Service with endpoints, of which the first so many are ready.
func portOf(name, port, address string, ready int, endpoints ...string) *lb.Service {
	s := &lb.Service{ID: lb.ID{Namespace: "default", Name: name, Port: port, Protocol: lb.TCP},
		Addresses: []lb.Address{{Addr: netip.MustParseAddrPort(address)}}}
	for i, e := range endpoints {
		s.Backends = append(s.Backends, lb.Backend{Addr: netip.MustParseAddrPort(e), Ready: i < ready})
	}
	return s
}

// TestChangedServices: what is reported from table to table, once for a Service however many ports it has.
func TestChangedServices(t *testing.T) {
	name := func(s string) lb.Name { return lb.Name{Namespace: "default", Name: s} }
	a := portOf("a", "", "10.96.0.1:80", 1, "10.0.0.1:80")
	b1 := portOf("b", "x", "10.96.0.2:80", 2, "10.0.0.1:80", "10.0.0.2:80")
	b2 := portOf("b", "y", "10.96.0.2:81", 2, "10.0.0.1:81", "10.0.0.2:81")
	c := portOf("c", "", "10.96.0.3:80", 1, "10.0.0.1:80")
	asked := *c
	asked.Policies = &lb.Policies{DataPath: "ipvs"}
	for _, x := range []struct {
		what    string
		was, is []*lb.Service
		want    []ServiceChange
	}{
		{"the first", nil, []*lb.Service{a, b1, b2}, []ServiceChange{
			{Service: name("a"), Added: true, Ports: 1, PortsChanged: true, Joined: 1, Endpoints: 1, Ready: 1},
			{Service: name("b"), Added: true, Ports: 2, PortsChanged: true, Joined: 4, Endpoints: 4, Ready: 4}}},
		{"nothing", []*lb.Service{a, b1, b2, c}, []*lb.Service{a, b1, b2, c}, nil},
		{"others in memory", []*lb.Service{a}, []*lb.Service{portOf("a", "", "10.96.0.1:80", 1, "10.0.0.1:80")}, nil},
		{"one goes", []*lb.Service{a, b1, b2, c}, []*lb.Service{a, c}, []ServiceChange{
			{Service: name("b"), Removed: true, Ports: 2, PortsChanged: true, Left: 4, WereReady: 4}}},
		{"the last port goes", []*lb.Service{a, b1, b2, c}, []*lb.Service{a, b1, c}, []ServiceChange{
			{Service: name("b"), Ports: 1, PortsChanged: true, Left: 2, Endpoints: 2, Ready: 2, WereReady: 4}}},
		{"endpoints of the second port", []*lb.Service{a, b1, b2}, []*lb.Service{a, b1,
			portOf("b", "y", "10.96.0.2:81", 1, "10.0.0.2:81", "10.0.0.3:81")}, []ServiceChange{
			{Service: name("b"), Ports: 2, Joined: 1, Left: 1, Endpoints: 4, Ready: 3, WereReady: 4}}},
		{"the last endpoint", []*lb.Service{a, c}, []*lb.Service{a, portOf("c", "", "10.96.0.3:80", 0, "10.0.0.1:80")},
			[]ServiceChange{{Service: name("c"), Ports: 1, Endpoints: 1, WereReady: 1, LostEndpoints: true}}},
		{"address and policy", []*lb.Service{a, c}, []*lb.Service{portOf("a", "", "10.96.0.9:80", 1, "10.0.0.1:80"),
			&asked},
			[]ServiceChange{{Service: name("a"), Ports: 1, Addresses: true, Endpoints: 1, Ready: 1, WereReady: 1},
				{Service: name("c"), Ports: 1, Policies: true, Endpoints: 1, Ready: 1, WereReady: 1}}},
	} {
		was, err := lb.NewTable(x.was, lb.Node{})
		if err != nil {
			t.Fatal(err)
		}
		is, delta, err := was.Next(x.is, lb.Node{})
		if err != nil {
			t.Fatal(err)
		}
		r := reported{table: was}
		r.note(&delta)
		if got := r.changes(is); !slices.Equal(got, x.want) {
			t.Errorf("%s: %+v, want %+v", x.what, got, x.want)
		}
	}
}
