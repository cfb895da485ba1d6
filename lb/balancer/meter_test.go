package balancer

import (
	"net/netip"
	"testing"

	"github.com/sluice-lb/sluice/lb"
)

// TestMeter: nothing is lost, what is little is told at the end only, and the totals of
// a Service stay when a backend goes.
func TestMeter(t *testing.T) {
	f := lb.Frontend{Protocol: lb.TCP, Addr: netip.MustParseAddrPort("10.96.0.1:80")}
	s := lb.Service{ID: lb.ID{Namespace: "default", Name: "web", Protocol: lb.TCP}, Addresses: []lb.Address{{Addr: f.Addr}},
		Backends: []lb.Backend{{Addr: netip.MustParseAddrPort("10.244.0.1:80"), Ready: true}}}
	var b Balancer
	update := func() {
		t.Helper()
		table, err := lb.NewTable(refs([]lb.Service{s}), lb.Node{})
		if err != nil {
			t.Fatal(err)
		}
		b.Update(table)
	}
	expect := func(what string, in, out uint64) {
		t.Helper()
		if got := b.Counters().All()[0]; got.BytesIn != in || got.BytesOut != out {
			t.Errorf("%s: %d in and %d out, want %d and %d", what, got.BytesIn, got.BytesOut, in, out)
		}
	}
	update()
	c, err := b.Pick(Flow{Frontend: f})
	if err != nil {
		t.Fatal(err)
	}
	var m Meter
	add := func(in, out int, want bool) {
		t.Helper()
		if first := m.Add(c, in, out); first != want {
			t.Errorf("%d in and %d out: first %v, want %v", in, out, first, want)
		}
	}
	add(0, 0, false)
	add(100, 0, true)
	add(0, flushEvery-1, false)
	expect("little", 0, 0)
	add(0, 1, false)
	expect("much", 100, flushEvery)
	add(1, 2, true)
	if n := testing.AllocsPerRun(100, func() { m.Add(c, 1, 1) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	m.Flush(c)
	m.Flush(c)
	expect("the end", 100+1+101, flushEvery+2+101)
	m.Add(c, 5, 0)
	m.Flush(Choice{}) // forgotten
	m.Flush(c)
	expect("without a choice", 202, flushEvery+103)
	c.Done(nil)
	s.Backends = nil
	update()
	update()
	expect("after the backend has gone", 202, flushEvery+103)
	if n := len(b.Counters().All()[0].Backends); n != 0 {
		t.Errorf("%d backends are left", n)
	}
}
