package balancer

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/sluice-lb/sluice/lb"
)

// admit asks for a connection of a client at a time.
func admit(b *Balancer, of netip.Addr, now int64) (Admission, error) {
	_, a, err := b.Queues().Admit(&lb.Frontend{Protocol: lb.TCP, Addr: front}, of, now)
	return a, err
}

// requesting returns a balancer with a service that requests p.
func requesting(t *testing.T, p *lb.Policies) *Balancer {
	s := echo(1)
	s.Policies = p
	return balancing(t, s)
}

func number(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
}

func TestMaxConnections(t *testing.T) {
	b := requesting(t, nil)
	var all []Admission
	for i := range 3 {
		a, err := admit(b, number(i), 0)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, a)
	}
	s := echo(1)
	s.Policies = &lb.Policies{MaxConnections: 3}
	b.Update(mustTable(t, []lb.Service{s})) // those from before count
	if _, err := admit(b, client, 0); !errors.Is(err, ErrServiceLimit) {
		t.Errorf("the fourth: %v", err)
	}
	all[0].End(number(0))
	if _, err := admit(b, client, 0); err != nil {
		t.Errorf("one after an end: %v", err)
	}
	if _, err := admit(b, client, 0); !errors.Is(err, ErrServiceLimit) {
		t.Errorf("the next: %v", err)
	}
	if n := b.Counters().All()[0].Limited; n != 2 {
		t.Errorf("%d are counted, want 2", n)
	}
	b.Queues().Readmit(s.ID) // of a hand-over: beyond the limit
	all[1].End(number(1))
	if _, err := admit(b, client, 0); !errors.Is(err, ErrServiceLimit) {
		t.Errorf("after one beyond the limit: %v", err)
	}
	if id, _, err := b.Queues().Admit(&lb.Frontend{Protocol: lb.UDP, Addr: front}, client, 0); id != nil || err != nil {
		t.Errorf("of no service: %v, %v", id, err)
	}
}

// TestForbiddenTakeNothing: clients that may not ask do not take what others may have.
func TestForbiddenTakeNothing(t *testing.T) {
	s := echo(1)
	s.Addresses[0].Sources = prefixes("192.0.2.0/24")
	s.Policies = &lb.Policies{MaxConnections: 1}
	b := balancing(t, s)
	for range 3 {
		if _, err := admit(b, number(1), 0); err != nil { // Pick refuses it
			t.Error(err)
		}
	}
	if _, err := admit(b, client, 0); err != nil {
		t.Errorf("a client that may ask: %v", err)
	}
}

// TestClientsOfOneIPv6Host: a host of IPv6 has a /64 of addresses, and the limits of one client. Affinity is by
// address.
func TestClientsOfOneIPv6Host(t *testing.T) {
	at := func(i int) netip.Addr {
		return netip.AddrFrom16([16]byte{0: 0x20, 1: 1, 8: byte(i), 15: byte(i)}).WithZone("eth0")
	}
	other := netip.MustParseAddr("2001:0:0:1::")
	for p, want := range map[lb.Policies]error{{MaxClientConnections: 2}: ErrClientLimit, {MaxClientConnectionRate: 2}: ErrClientRate} {
		b := requesting(t, &p)
		a, err := admit(b, at(0), 0)
		if err != nil {
			t.Fatal(err)
		}
		b.Queues().Readmit(a.Service()).CountClient(at(1))
		b.Memory().RememberClientRates(a.Service(), []ClientRate{{at(1), 1e9}})
		if _, err := admit(b, at(2), 0); !errors.Is(err, want) {
			t.Errorf("%+v: the third address of a host: %v, want %v", p, err, want)
		}
		if _, err := admit(b, other, 0); err != nil {
			t.Errorf("%+v: another host: %v", p, err)
		}
		if a.End(at(0)); p.MaxClientConnections > 0 {
			if _, err := admit(b, at(3), 0); err != nil {
				t.Errorf("%+v: after an end: %v", p, err)
			}
		}
	}
}

func TestMaxClientConnections(t *testing.T) {
	b := requesting(t, &lb.Policies{MaxClientConnections: 2})
	var all []Admission
	for i := range 4 {
		of := number(i / 2)
		a, err := admit(b, of, 0)
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		all = append(all, a)
	}
	mapped := netip.AddrFrom16(number(0).As16())
	for _, of := range []netip.Addr{number(0), mapped, number(1)} {
		if _, err := admit(b, of, 0); !errors.Is(err, ErrClientLimit) {
			t.Errorf("one more of %v: %v", of, err)
		}
	}
	all[0].End(number(0))
	if _, err := admit(b, mapped, 0); err != nil {
		t.Errorf("after an end: %v", err)
	}
	for i, a := range all[1:] {
		a.End(number((i + 1) / 2))
	}
	if n := b.service(echo().ID).state.conns.Load(); n != 1 {
		t.Errorf("%d connections are left, want 1", n)
	}
}

// TestClientRate: a client may open a second's worth at once, and then as many as the rate says, however often it asks.
func TestClientRate(t *testing.T) {
	const rate, ms = 10, int64(1e6)
	b := requesting(t, &lb.Policies{MaxClientConnectionRate: rate})
	open := func(from, to int64) (n int) {
		for now := from; now < to; now += ms {
			if a, err := admit(b, client, now*1); err == nil {
				a.End(client)
				n++
			} else if !errors.Is(err, ErrClientRate) {
				t.Fatal(err)
			}
		}
		return n
	}
	second := 1000 * ms
	if n := open(1, 1+50*ms); n != rate {
		t.Errorf("%d at once, want %d", n, rate)
	}
	if n := open(second, 3*second); n < 2*rate || n > 3*rate {
		t.Errorf("%d in two seconds, want %d and what was left", n, 2*rate)
	}
	if n := open(3*second, 13*second); n < 10*rate-1 || n > 10*rate+1 {
		t.Errorf("%d in ten seconds, want %d", n, 10*rate)
	}
	if _, err := admit(b, number(1), 13*second); err != nil {
		t.Errorf("another client: %v", err)
	}
}

// TestClientsAreBounded: clients beyond what can be known are not limited; those of which nothing
// need be known make room.
// TestClientRateMoves: who has used its rate at one Balancer has used it at the one that takes over.
func TestClientRateMoves(t *testing.T) {
	p := &lb.Policies{MaxClientConnectionRate: 4}
	b, next := requesting(t, p), requesting(t, p)
	now := int64(10e9)
	for range 4 {
		if _, err := admit(b, client, now); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := admit(b, number(1), now-2e9); err != nil { // which is over by now
		t.Fatal(err)
	}
	moved := 0
	b.Memory().ClientRates(now, func(id lb.ID, all []ClientRate) {
		moved += len(all)
		next.Memory().RememberClientRates(id, all)
	})
	if moved != 1 {
		t.Errorf("the rates of %d clients move, want that of one", moved)
	}
	if _, err := admit(next, client, now); !errors.Is(err, ErrClientRate) {
		t.Errorf("beyond the rate after the move: %v", err)
	}
	if _, err := admit(next, client, now+250e6); err != nil {
		t.Errorf("a quarter of a second later: %v", err)
	}
	if _, err := admit(next, client, now+250e6); !errors.Is(err, ErrClientRate) {
		t.Errorf("the next: %v", err)
	}
	unlimited := requesting(t, nil)
	b.Memory().ClientRates(now, unlimited.Memory().RememberClientRates)
	if _, err := admit(unlimited, client, now); err != nil {
		t.Errorf("where there is no limit: %v", err)
	}
}

func TestClientsAreBounded(t *testing.T) {
	b := requesting(t, &lb.Policies{MaxClientConnections: 1, MaxClientConnectionRate: 1})
	const more = manyClients + manyClients/2
	all := make([]Admission, more)
	unlimited := 0
	for i := range all {
		var err error
		if all[i], err = admit(b, number(i), 1); err != nil {
			t.Fatal(err)
		}
		if all[i].client == notLimited {
			unlimited++
		}
	}
	s := b.service(echo().ID).state
	known := func() (n int) {
		for i := range s.clients.Load().parts {
			n += len(s.clients.Load().parts[i].by)
		}
		return n
	}
	if n := known(); n != manyClients {
		t.Errorf("%d are known, want %d", n, manyClients)
	}
	if unlimited != more-manyClients {
		t.Errorf("%d were not limited, want %d", unlimited, more-manyClients)
	}
	for i, a := range all {
		a.End(number(i))
	}
	if _, err := admit(b, number(more), 3e9); err != nil || known() > manyClients*15/16+1 {
		t.Errorf("%v, %d are known", err, known())
	}
	b.Sweep(3e9)
	if n := known(); n != 1 {
		t.Errorf("%d are known after a sweep, want 1", n)
	}
}

func TestAdmitDoesNotAllocate(t *testing.T) {
	b := requesting(t, &lb.Policies{MaxConnections: 5, MaxClientConnections: 5, MaxClientConnectionRate: 5})
	now := int64(0)
	if n := testing.AllocsPerRun(1000, func() {
		now += 1e9
		if a, err := admit(b, client, now); err == nil {
			a.End(client)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestClientLimitAfterHandover: connections from before there was a limit of a client do not count, after a hand-over
// either. Those that did count do.
func TestClientLimitAfterHandover(t *testing.T) {
	before := requesting(t, nil)
	var all []Admission
	add := func(now int64) {
		t.Helper()
		a, err := admit(before, client, now)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, a)
	}
	for range 3 {
		add(0)
	}
	limited := echo(1)
	limited.Policies = &lb.Policies{MaxClientConnections: 2}
	before.Update(mustTable(t, []lb.Service{limited}))
	add(1)
	after := balancing(t, limited)
	for i := range all {
		counts := all[i].CountsClient()
		if all[i] = after.Queues().Readmit(limited.ID); counts {
			all[i] = all[i].CountClient(client)
		}
	}
	if _, err := admit(after, client, 2); err != nil {
		t.Errorf("the second that counts: %v", err)
	}
	if _, err := admit(after, client, 2); !errors.Is(err, ErrClientLimit) {
		t.Errorf("the third that counts: %v", err)
	}
	for _, a := range all {
		a.End(client)
	}
	if _, err := admit(after, client, 3); err != nil {
		t.Errorf("after those have ended that crossed: %v", err)
	}
}
