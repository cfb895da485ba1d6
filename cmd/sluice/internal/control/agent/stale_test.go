package agent

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/internal/flows"
	"github.com/sluice-lb/sluice/internal/lists"
	"github.com/sluice-lb/sluice/lb"
)

// stale notes what an agent says of places.
type stale struct {
	add    func(lb.Frontend) // may be nil
	places map[lb.Frontend]flows.Place
	looked int
}

func (s *stale) Change(f lb.Frontend, _, now flows.Place, _ bool) {
	if s.places == nil {
		s.places = make(map[lb.Frontend]flows.Place)
	}
	s.places[f] = now
}

func (s *stale) Add(list []lb.Frontend) {
	for _, f := range list {
		if s.add != nil {
			s.add(f)
		}
	}
}

func (s *stale) Reconcile(*flows.Node, func(lb.Frontend) bool) bool { s.looked++; return false }

// take returns the places since the last call, in a line.
func (s *stale) take() string {
	var out []string
	for _, f := range slices.SortedFunc(maps.Keys(s.places),
		func(a, b lb.Frontend) int { return b.Addr.Compare(a.Addr) }) {
		p := s.places[f]
		text := fmt.Sprintf("%d %s", p.Kind, f.Addr)
		if p.Port != 0 {
			text += fmt.Sprintf(" port=%d", p.Port)
		}
		if p.AtSocket {
			text += " socket"
		}
		if len(p.Endpoints) > 0 {
			text += fmt.Sprintf(" endpoints=%d", len(p.Endpoints))
		}
		out = append(out, text)
	}
	s.places = nil
	return strings.Join(out, ", ")
}

// TestPlaces: where flows of UDP may be while their Service changes and moves between paths. A proxy port goes on
// until its flows have ended.
func TestPlaces(t *testing.T) {
	a, k := newAgent(t)
	a.Log = zap.NewNop()
	a.Families[0].Engines[IPTables] = &inKernel{k: k, name: "iptables"}
	dns := func(path string, backends ...byte) *lb.Service {
		s := service(lb.UDP, "dns", 1, backends...)
		s.Addresses = append(s.Addresses, lb.Address{Kind: lb.NodePort,
			Addr: netip.AddrPortFrom(netip.IPv4Unspecified(), 30053)})
		return requesting(s, path)
	}
	cluster := lb.Frontend{Protocol: lb.UDP, Addr: dns("").Addresses[0].Addr}
	const user, kernel = "userspace", "iptables"
	const node = "0.0.0.0:30053"
	for _, step := range []struct {
		name    string
		flowing bool
		service *lb.Service // nil: none
		want    string
	}{
		{"begins", false, dns(user, 1), "2 10.96.0.1:53 port=20001, 3 " + node},
		{"moves, with flows", true, dns(kernel, 1),
			"4 10.96.0.1:53 port=20001 endpoints=1, 4 " + node + " socket endpoints=1"},
		{"another endpoint", true, dns(kernel, 1, 2),
			"4 10.96.0.1:53 port=20001 endpoints=2, 4 " + node + " socket endpoints=2"},
		{"flows end", false, dns(kernel, 1, 2), "4 10.96.0.1:53 endpoints=2"},
		{"moves back", false, dns(user, 1, 2), "2 10.96.0.1:53 port=20002 endpoints=2, 3 " + node + " endpoints=2"},
		{"goes", true, nil, "0 10.96.0.1:53, 0 " + node},
		{"comes on the kernel's path", false, dns(kernel, 1), "4 10.96.0.1:53 endpoints=1, 4 " + node + " endpoints=1"},
	} {
		k.flowing = map[lb.Frontend]bool{cluster: step.flowing}
		var services []*lb.Service
		if step.service != nil {
			services = append(services, step.service)
		}
		if err := a.Apply(t.Context(), Desired{Services: lists.Of(services)}); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if got := k.stale.take(); got != step.want {
			t.Errorf("%s: %s, want %s", step.name, got, step.want)
		}
		want := step.service != nil && (step.flowing || step.service.Policies.DataPath == user)
		if _, open := k.open[cluster]; open != want {
			t.Errorf("%s: its proxy port is open: %t", step.name, open)
		}
	}
}
