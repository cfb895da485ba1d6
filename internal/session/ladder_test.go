package session

import (
	"net/netip"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

var frontend = netip.MustParseAddrPort("10.96.0.1:80")

// balancerOf returns one with a Service of so many backends.
func balancerOf(t *testing.T, backends ...string) *balancer.Balancer {
	t.Helper()
	s := lb.Service{ID: lb.ID{Name: "web", Protocol: lb.TCP}, Addresses: []lb.Address{{Addr: frontend}}}
	for _, b := range backends {
		s.Backends = append(s.Backends, lb.Backend{Addr: netip.MustParseAddrPort(b), Ready: true, Serving: true})
	}
	table, err := lb.NewTable([]*lb.Service{&s}, lb.Node{})
	if err != nil {
		t.Fatal(err)
	}
	b := new(balancer.Balancer)
	b.Update(table)
	return b
}

var client = balancer.Flow{Frontend: lb.Frontend{Protocol: lb.TCP, Addr: frontend}, Client: netip.MustParseAddr("192.0.2.1")}

// Every attempt has its timeout and, as long as there is one, another backend.
func TestLadder(t *testing.T) {
	config := Config{LB: balancerOf(t, "10.0.0.1:1", "10.0.0.2:1")}.WithDefaults()
	var count Counters
	var l Ladder
	l.Start(client)
	seen := make(map[netip.AddrPort]int)
	for i, want := range []time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second} {
		choice, timeout, err := l.Next(&config)
		if err != nil || timeout != want {
			t.Fatalf("attempt %d: %v, %v; want %v", i, timeout, err, want)
		}
		if seen[choice.Backend()]++; i < 2 && len(seen) != i+1 {
			t.Errorf("attempt %d is made to %v again", i, choice.Backend())
		}
		l.Failed(choice)
		choice.Done(nil)
	}
	_, _, err := l.Next(&config)
	if Refuse(&count, err); err == nil || count.DialGaveUp.Load() != 1 {
		t.Errorf("after the last attempt: %v, %d given up", err, count.DialGaveUp.Load())
	}
}

// Waits for resources of this host take no attempt, and are bounded.
func TestLadderShortage(t *testing.T) {
	config := Config{LB: balancerOf(t, "10.0.0.1:1")}.WithDefaults()
	var count Counters
	var l Ladder
	l.Start(client)
	for range maxShortages {
		choice, timeout, err := l.Next(&config)
		if choice.Done(nil); err != nil || timeout != config.DialTimeouts[0] || !l.Short(&count) {
			t.Fatalf("after %d waits: %v, %v", count.Shortages.Load(), timeout, err)
		}
	}
	if l.Short(&count) || count.Shortages.Load() != maxShortages {
		t.Errorf("%d waits, and one more", count.Shortages.Load())
	}
}

// Only the second and later attempts at the only backend go on with the socket that they have.
func TestLadderStays(t *testing.T) {
	one, two := balancerOf(t, "10.0.0.1:1"), balancerOf(t, "10.0.0.1:1", "10.0.0.2:1")
	for _, c := range []struct {
		balancer *balancer.Balancer
		stays    []time.Duration // of each attempt; 0: it does not
	}{
		{one, []time.Duration{0, time.Second, 2 * time.Second, 0}},
		{two, []time.Duration{0, 0, 0, 0}},
	} {
		config := Config{LB: c.balancer}.WithDefaults()
		var l Ladder
		l.Start(client)
		choice, _, _ := l.Next(&config)
		for i, want := range c.stays {
			timeout, ok := l.Stays(&config, choice)
			if timeout != want || ok != (want > 0) {
				t.Errorf("attempt %d of %v stays %v, %t; want %v", i, c.stays, timeout, ok, want)
			}
			if !ok {
				l.Failed(choice)
				choice.Done(nil)
				choice, _, _ = l.Next(&config)
			}
		}
		if choice.Valid() {
			t.Errorf("%v: another attempt after the last", c.stays)
		}
	}
}

func TestLadderWithoutBackend(t *testing.T) {
	config := Config{LB: balancerOf(t)}.WithDefaults()
	var count Counters
	var l Ladder
	l.Start(client)
	_, _, err := l.Next(&config)
	if Refuse(&count, err); err == nil || count.NoBackend.Load() != 1 || count.Dials.Load() != 0 {
		t.Errorf("%v, stats %+v", err, &count)
	}
	unknown := client
	unknown.Frontend.Addr = netip.MustParseAddrPort("10.96.0.9:80")
	l.Start(unknown)
	_, _, err = l.Next(&config)
	if Refuse(&count, err); err == nil || count.NoService.Load() != 1 {
		t.Errorf("%v, %d without a Service", err, count.NoService.Load())
	}
}

// A dial crosses to another process with what it has tried.
func TestLadderHandover(t *testing.T) {
	b := balancerOf(t, "10.0.0.1:1", "10.0.0.2:1")
	config := Config{LB: b}.WithDefaults()
	var count Counters
	var l, next Ladder
	l.Start(client)
	first, _, _ := l.Next(&config)
	l.Failed(first)
	l.Short(&count)
	frozen := l.Freeze()
	next.Thaw(&config, &frozen, first.Service(), netip.AddrPort{})
	second, timeout, err := next.Next(&config)
	if err != nil || second.Backend() == first.Backend() || timeout != config.DialTimeouts[1] || next.shortages != 1 {
		t.Errorf("%v after %v within %v, %v, %d waits", second.Backend(), first.Backend(), timeout, err, next.shortages)
	}
	first.Done(nil)
	second.Done(nil)
}
