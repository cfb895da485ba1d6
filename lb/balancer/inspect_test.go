package balancer

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/sluice-lb/sluice/lb"
)

// TestView: what is said of a service port agrees with Stats, and why a backend takes connections is said of each.
func TestView(t *testing.T) {
	id := lb.ID{Namespace: "default", Name: "web", Protocol: lb.TCP}
	frontend := lb.Frontend{Protocol: lb.TCP, Addr: netip.MustParseAddrPort("10.96.0.80:80")}
	good, bad := netip.MustParseAddrPort("10.0.0.1:80"), netip.MustParseAddrPort("10.0.0.2:80")
	table, err := lb.NewTable([]*lb.Service{{ID: id, Addresses: []lb.Address{{Addr: frontend.Addr}},
		Policies: &lb.Policies{OnEndpointRemoved: -1}, Backends: []lb.Backend{{Addr: good, Ready: true}, {Addr: bad}}}}, lb.Node{})
	if err != nil {
		t.Fatal(err)
	}
	b := Balancer{Defaults: lb.Policies{ConnectAttempts: 2}}
	b.Update(table)
	for i := range 3 {
		c, err := b.Pick(Flow{Frontend: frontend})
		if err != nil {
			t.Fatal(err)
		}
		m := Meter{}
		m.Add(c, 100, 10)
		m.Flush(c)
		if i > 0 {
			c.Done(errors.New("reset"))
		}
	}
	v, ok := b.Counters().View(id)
	if !ok || v.Service.ID != id || v.Policies.ConnectAttempts != 2 || v.Policies.OnEndpointRemoved != -1 {
		t.Errorf("View = %+v, %v", v, ok)
	}
	if s := v.Stats; s.Picks != 3 || s.Failures != 2 || s.InFlight != 1 || s.BytesIn != 300 || s.BytesOut != 30 ||
		s.Backends[0].Addr != good {
		t.Errorf("the statistics are %+v", s)
	}
	if len(v.Why) != 2 || v.Why[0] != "ready" || v.Why[1] != "not ready" {
		t.Errorf("the reasons are %q", v.Why)
	}
	if sum, open := b.Counters().Totals(); sum != v.Stats.Counts || open != 1 {
		t.Errorf("Totals = %+v, %d", sum, open)
	}
	b.Counters().Sums(func(s *Sum) {
		if s.Service != v.Service || s.Counts != v.Stats.Counts || s.InFlight != 1 || s.Eligible != 1 ||
			s.Failing != 0 ||
			s.Refused != 0 {
			t.Errorf("Sums = %+v", s)
		}
	})
	if _, ok := b.Counters().View(lb.ID{Name: "web"}); ok {
		t.Error("there is a view of a service that the table does not have")
	}
}
