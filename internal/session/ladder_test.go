package session

import (
	"net/netip"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/lb"
)

var frontend = netip.MustParseAddrPort("10.96.0.1:80")

// balancer returns one with a Service of so many backends.
func balancer(t *testing.T, backends ...string) *lb.Balancer {
	t.Helper()
	s := lb.Service{ID: lb.ID{Name: "web", Protocol: lb.TCP}, Addresses: []lb.Address{{Addr: frontend}}}
	for _, b := range backends {
		s.Backends = append(s.Backends, lb.Backend{Addr: netip.MustParseAddrPort(b), Ready: true, Serving: true})
	}
	table, err := lb.NewTable([]*lb.Service{&s}, lb.Node{})
	if err != nil {
		t.Fatal(err)
	}
	b := new(lb.Balancer)
	b.Update(table)
	return b
}

var client = lb.Flow{Frontend: lb.Frontend{Protocol: lb.TCP, Addr: frontend}, Client: netip.MustParseAddr("192.0.2.1")}

// Every attempt has its timeout and, as long as there is one, another backend.
func TestLadder(t *testing.T) {
	config := Config{LB: balancer(t, "10.0.0.1:1", "10.0.0.2:1")}.WithDefaults()
	var count Counters
	var l Ladder
	l.Start(client)
	seen := make(map[netip.AddrPort]int)
	for i, want := range []time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second} {
		choice, timeout, ok := l.Next(&config, &count)
		if !ok || timeout != want {
			t.Fatalf("attempt %d: %v, %t; want %v", i, timeout, ok, want)
		}
		if seen[choice.Backend()]++; i < 2 && len(seen) != i+1 {
			t.Errorf("attempt %d is made to %v again", i, choice.Backend())
		}
		l.Failed(choice)
		choice.Done(nil)
	}
	if _, _, ok := l.Next(&config, &count); ok || count.DialGaveUp.Load() != 1 {
		t.Errorf("after the last attempt: %t, %d given up", ok, count.DialGaveUp.Load())
	}
}

// Waits for resources of this host take no attempt, and are bounded.
func TestLadderShortage(t *testing.T) {
	config := Config{LB: balancer(t, "10.0.0.1:1")}.WithDefaults()
	var count Counters
	var l Ladder
	l.Start(client)
	for range maxShortages {
		choice, timeout, ok := l.Next(&config, &count)
		if choice.Done(nil); !ok || timeout != config.DialTimeouts[0] || !l.Short(&count) {
			t.Fatalf("after %d waits: %v, %t", count.Shortages.Load(), timeout, ok)
		}
	}
	if l.Short(&count) || count.Shortages.Load() != maxShortages {
		t.Errorf("%d waits, and one more", count.Shortages.Load())
	}
}

// Only the second and later attempts at the only backend go on with the socket that they have.
func TestLadderStays(t *testing.T) {
	one, two := balancer(t, "10.0.0.1:1"), balancer(t, "10.0.0.1:1", "10.0.0.2:1")
	for _, c := range []struct {
		balancer *lb.Balancer
		stays    []time.Duration // of each attempt; 0: it does not
	}{
		{one, []time.Duration{0, time.Second, 2 * time.Second, 0}},
		{two, []time.Duration{0, 0, 0, 0}},
	} {
		config := Config{LB: c.balancer}.WithDefaults()
		var count Counters
		var l Ladder
		l.Start(client)
		choice, _, _ := l.Next(&config, &count)
		for i, want := range c.stays {
			timeout, ok := l.Stays(&config, choice)
			if timeout != want || ok != (want > 0) {
				t.Errorf("attempt %d of %v stays %v, %t; want %v", i, c.stays, timeout, ok, want)
			}
			if !ok {
				l.Failed(choice)
				choice.Done(nil)
				choice, _, _ = l.Next(&config, &count)
			}
		}
		if choice.Valid() {
			t.Errorf("%v: another attempt after the last", c.stays)
		}
	}
}

func TestLadderWithoutBackend(t *testing.T) {
	config := Config{LB: balancer(t)}.WithDefaults()
	var count Counters
	var l Ladder
	l.Start(client)
	if _, _, ok := l.Next(&config, &count); ok || count.NoBackend.Load() != 1 || count.Dials.Load() != 0 {
		t.Errorf("%t, stats %+v", ok, &count)
	}
	unknown := client
	unknown.Frontend.Addr = netip.MustParseAddrPort("10.96.0.9:80")
	l.Start(unknown)
	if _, _, ok := l.Next(&config, &count); ok || count.NoService.Load() != 1 {
		t.Errorf("%t, %d without a Service", ok, count.NoService.Load())
	}
}

// A dial crosses to another process with what it has tried.
func TestLadderHandover(t *testing.T) {
	b := balancer(t, "10.0.0.1:1", "10.0.0.2:1")
	config := Config{LB: b}.WithDefaults()
	var count Counters
	var l, next Ladder
	l.Start(client)
	first, _, _ := l.Next(&config, &count)
	l.Failed(first)
	l.Short(&count)
	frozen := l.Freeze()
	next.Thaw(&config, &frozen, first.Service(), netip.AddrPort{})
	second, timeout, ok := next.Next(&config, &count)
	if !ok || second.Backend() == first.Backend() || timeout != config.DialTimeouts[1] || next.shortages != 1 {
		t.Errorf("%v after %v within %v, %t, %d waits", second.Backend(), first.Backend(), timeout, ok, next.shortages)
	}
	first.Done(nil)
	second.Done(nil)
}
