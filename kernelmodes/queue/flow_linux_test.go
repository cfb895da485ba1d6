package queue

import (
	"net/netip"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/kernelmodes/lab"
	"github.com/sluice-lb/sluice/lb"
)

// TestStates: a flow goes through the states as described, and what is always true holds in each.
func TestStates(t *testing.T) {
	s := &lb.Service{ID: lb.ID{Name: "web", Protocol: lb.TCP},
		Addresses: []lb.Address{{Addr: lab.At(testbed.VIP(false, 1), 80)}},
		Backends:  []lb.Backend{{Addr: netip.MustParseAddrPort("10.244.0.1:8080"), Ready: true, Serving: true}}}
	table, err := lb.NewTable([]*lb.Service{s}, lb.Node{})
	if err != nil {
		t.Fatal(err)
	}
	b := new(lb.Balancer)
	b.Update(table)
	begin := func() *flow { return &flow{choice: b.Resume(s.ID, s.Backends[0].Addr), since: 1} }
	for want, change := range map[string]func(*flow){
		"asked 10.244.0.1:8080":    func(*flow) {},
		"missing 10.244.0.1:8080":  func(f *flow) { f.visited(false) },
		"patient 10.244.0.1:8080":  func(f *flow) { f.wait(b.Resume(s.ID, s.Backends[0].Addr)) },
		"retrying 10.244.0.1:8080": func(f *flow) { f.visited(false); f.retry(2) },
		"answered 10.244.0.1:8080": func(f *flow) { f.visited(false); f.visited(true); f.answer(7); f.visited(false) },
	} {
		f := begin()
		if change(f); f.String() != want {
			t.Errorf("%s, want %s", f, want)
		}
		if f.choice.Valid() != (f.state != retrying) || f.id != 0 != (f.state == answered) ||
			f.state == retrying && (f.failed == nil || f.since != 2 || f.service() != s.ID) ||
			f.isVisited() != (f.state != patient && f.state != answered) {
			t.Errorf("%s: %+v", f, f)
		}
	}
}
