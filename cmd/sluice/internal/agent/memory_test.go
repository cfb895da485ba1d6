package agent

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/lb"
)

// numbered returns TCP Services with one address and endpoints each.
func numbered(services, endpoints int) []*lb.Service {
	all := make([]*lb.Service, services)
	for i := range all {
		s := &lb.Service{ID: lb.ID{Namespace: "default", Name: fmt.Sprint("s", i), Protocol: lb.TCP}}
		s.Addresses = []lb.Address{{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), 80)}}
		for k := range endpoints {
			s.Backends = append(s.Backends, lb.Backend{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(k), byte(i >> 8), byte(i)}), 80), Ready: true, Serving: true})
		}
		all[i] = s
	}
	return all
}

func idleAgent() *Agent {
	return New(Config{LB: new(lb.Balancer), Servers: map[lb.Protocol]Sockets{lb.TCP: idle{}, lb.UDP: idle{}},
		Families: [2]Family{{Steer: &Steering{idle{}.Sync, idle{}.Verify}}},
		Now:      func() int64 { return 0 }, Log: zap.NewNop()})
}

// withFewer returns a Service with an endpoint less.
func withFewer(s *lb.Service) *lb.Service {
	other := *s
	other.Backends = other.Backends[1:]
	return &other
}

// TestBytesOfApply holds down what one change among 10,000 Services allocates; see
// TestBytesOfChange of lb.
func TestBytesOfApply(t *testing.T) {
	services := numbered(10_000, 10)
	fewer := slices.Clone(services)
	fewer[7] = withFewer(fewer[7])
	a := idleAgent()
	apply := func(list []*lb.Service) {
		mustApply(t, a, list...)
	}
	for _, c := range []struct {
		what  string
		other []*lb.Service
	}{{"endpoint", fewer}, {"Service", services[:9_999]}} {
		apply(c.other) // to begin with, memory is taken that serves again
		apply(services)
		const changes = 20
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range changes / 2 {
			apply(c.other)
			apply(services)
		}
		runtime.ReadMemStats(&after)
		const limit = 400 << 10 // a table and a snapshot are 200 KiB, and to remove takes two
		if each := (after.TotalAlloc - before.TotalAlloc) / changes; each > limit {
			t.Errorf("a change of one %s allocates %d bytes, at most %d are right", c.what, each, limit)
		}
	}
}
