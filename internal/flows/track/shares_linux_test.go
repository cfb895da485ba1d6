package track

import (
	"net/netip"
	"testing"

	"github.com/sluice-lb/sluice/internal/shares"
	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
)

// TestProbesFull: a flow whose probe has no room is not followed, so that each flow in the table that waits for its
// endpoint has one. Probes of flows that have ended make room when they are due.
func TestProbesFull(t *testing.T) {
	w := newWorld(t, lb.TCP, lb.Policies{}, "a")
	const many = 2 * manyFlows / flowParts
	for range many + 1 { // flows with the same addresses, one after the other
		if number, err := w.Choose(w.flow("1")); number == 0 {
			t.Fatal(err)
		}
	}
	if s := w.Stats(); s.Known != 0 || s.Rejected.Room != 1 {
		t.Errorf("%+v; want no flow, and 1 without room", s)
	}
	w.do([]string{"pass", "300ms"})
	if n := w.pending.Load(); n != 0 {
		t.Errorf("%d probes are left", n)
	}
	if w.Choose(w.flow("1")); w.Stats().Known != 1 {
		t.Errorf("%+v; want a flow", w.Stats())
	}
}

// TestShare: neither a Service nor a client can have all flows that there is room for, and what has no room is not in
// flight; it goes on.
func TestShare(t *testing.T) {
	w := newWorld(t, lb.UDP, lb.Policies{Scheduler: "lc"}, "a")
	w.Number = func(netip.AddrPort) uint32 { return 1 }
	one, other := w.service, w.service
	other.Name, other.IPv6 = "other", true
	other.Addresses = []lb.Address{{Addr: netip.MustParseAddrPort("[2001:db8:96::1]:80")}}
	other.Backends = []lb.Backend{{Addr: netip.MustParseAddrPort("[2001:db8::1]:8080"), Ready: true, Serving: true}}
	table, err := lb.NewTable([]*lb.Service{&one, &other}, lb.Node{})
	testbed.Check(t, err)
	w.Balancer.Update(table)
	ask := func(s *lb.Service, client netip.Addr, count int) {
		for i := range count {
			number, err := w.Choose(&lb.Flow{Frontend: lb.Frontend{Protocol: lb.UDP, Addr: s.Addresses[0].Addr},
				Client: client, ClientPort: uint16(i), Now: w.now, Forwarded: true})
			if number == 0 {
				t.Fatalf("flow %d of %s has no endpoint: %v", i, client, err)
			}
		}
	}
	inFlight := func(s *lb.Service) uint64 {
		view, _ := w.Balancer.View(s.ID)
		return view.Stats.Backends[0].InFlight
	}
	has := func(s *lb.Service, percent, of uint64) uint64 {
		t.Helper()
		got := inFlight(s)
		if want := of * percent / 100; got > want*101/100 || got < want*95/100 {
			t.Errorf("%s: %d in flight, want %d of %d", s.Name, got, want, of)
		}
		return got
	}
	w.Shares = shares.Shares{Service: 80, Client: 10}
	addr := netip.MustParseAddr("192.0.2.1")
	ask(&one, addr, 1<<16)
	first := has(&one, 10, manyFlows)
	for range 64 {
		addr = addr.Next()
		ask(&one, addr, 1<<14)
	}
	all := has(&one, 80, manyFlows)
	if n := w.Stats().Rejected; n.Client < 1<<16-first || n.Service == 0 || n.Room > 0 {
		t.Errorf("%+v", n)
	}
	if view, _ := w.Balancer.View(one.ID); view.Stats.OverShare != w.Stats().Rejected.Service {
		t.Errorf("%d times over its share, want %+v", view.Stats.OverShare, w.Stats().Rejected)
	}
	addr = netip.MustParseAddr("2001:db8::1:0")
	ask(&other, addr, 1<<14)
	has(&other, 10, manyFlows-all)
	before := inFlight(&other)
	ask(&other, addr.Next(), 100) // of the same host, as far as is known
	if got := inFlight(&other) - before; got > 50 {
		t.Errorf("a client has %d flows more by another address", got)
	}
}
