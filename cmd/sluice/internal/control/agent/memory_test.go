package agent

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/internal/lists"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
	"github.com/sluice-lb/sluice/redirect"
)

// idle takes plans and sockets without looking.
type idle struct{}

func (idle) Sync(context.Context, redirect.Update) error                    { return nil }
func (idle) Verify(context.Context) (bool, error)                           { return true, nil }
func (idle) Listen(_ lb.Frontend, a netip.AddrPort) (netip.AddrPort, error) { return a, nil }
func (idle) Unlisten(lb.Frontend)                                           {}
func (idle) TableChanged()                                                  {}

// noProxies is no proxy port of TCP.
type noProxies struct{ ProxyPorts }

func (noProxies) Steered() []netip.AddrPort { return nil }

// oneChange calls do for each of two changes among 10,000 TCP Services of 10 endpoints: an endpoint less,
// and the whole Service less. It passes a function that makes the change and takes it back.
func oneChange(t testing.TB, do func(what string, change func())) {
	services := make([]*lb.Service, 10_000)
	for i := range services {
		at := func(a, b byte) netip.AddrPort {
			return netip.AddrPortFrom(netip.AddrFrom4([4]byte{a, b, byte(i >> 8), byte(i)}), 80)
		}
		s := &lb.Service{ID: lb.ID{Namespace: "default", Name: fmt.Sprint("s", i), Protocol: lb.TCP}}
		s.Addresses = []lb.Address{{Addr: at(10, 96)}}
		for k := range byte(10) {
			s.Backends = append(s.Backends, lb.Backend{Addr: at(11, k), Ready: true, Serving: true})
		}
		services[i] = s
	}
	fewer, other := slices.Clone(services), *services[7]
	other.Backends = other.Backends[1:]
	fewer[7] = &other
	for what, list := range map[string][]*lb.Service{"endpoint": fewer, "Service": services[:9_999]} {
		a := New(Config{LB: new(balancer.Balancer), Servers: map[lb.Protocol]Sockets{lb.TCP: idle{}, lb.UDP: idle{}},
			Proxy:    noProxies{},
			Families: [2]Family{{Steer: &Steering{idle{}.Sync, idle{}.Verify}}},
			Now:      func() int64 { return 0 }, Log: zap.NewNop()})
		do(what, func() {
			for _, want := range [][]*lb.Service{list, services} {
				if err := a.Apply(context.Background(), Desired{Services: lists.Of(want)}); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// TestBytesOfApply holds down what one change among 10,000 Services allocates; see
// TestBytesOfChange of balancer.
func TestBytesOfApply(t *testing.T) {
	oneChange(t, func(what string, change func()) {
		change() // to begin with, memory is taken that serves again
		const changes = 10
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range changes {
			change()
		}
		runtime.ReadMemStats(&after)
		const limit = 400 << 10 // a table and a snapshot are 200 KiB, and to remove takes two
		if each := (after.TotalAlloc - before.TotalAlloc) / (2 * changes); each > limit {
			t.Errorf("a change of one %s allocates %d bytes, at most %d are right", what, each, limit)
		}
	})
}

// BenchmarkApply is a change and taking it back.
func BenchmarkApply(b *testing.B) {
	oneChange(b, func(what string, change func()) {
		b.Run(what, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				change()
			}
		})
	})
}
