package agent

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/redirect"
)

// idle takes plans and sockets without looking.
type idle struct{}

func (idle) Sync(context.Context, redirect.Plan) error       { return nil }
func (idle) Verify(context.Context) (bool, error)            { return true, nil }
func (idle) Listen(a netip.AddrPort) (netip.AddrPort, error) { return a, nil }
func (idle) Unlisten(netip.AddrPort)                         {}
func (idle) TableChanged()                                   {}

// BenchmarkApply is one change among 10,000 Services of 10 endpoints: an endpoint
// less, and the whole Service less.
func BenchmarkApply(b *testing.B) {
	services := make([]lb.Service, 10_000)
	for i := range services {
		s := lb.Service{ID: lb.ID{Namespace: "default", Name: fmt.Sprint("s", i), Protocol: lb.TCP}}
		s.Addresses = []lb.Address{{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), 80)}}
		for k := range 10 {
			s.Backends = append(s.Backends, lb.Backend{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(k), byte(i >> 8), byte(i)}), 80), Ready: true, Serving: true})
		}
		services[i] = s
	}
	fewer := append([]lb.Service(nil), services...)
	fewer[7].Backends = fewer[7].Backends[1:]
	for name, other := range map[string][]lb.Service{"endpoint": fewer, "service": services[:9_999]} {
		b.Run(name, func(b *testing.B) {
			a := &Agent{LB: new(lb.Balancer), TCP: idle{}, UDP: kernelLess{}, IPv4: Family{Steer: idle{}}, Now: func() int64 { return 0 }, Log: zap.NewNop()}
			b.ReportAllocs()
			for i := range b.N {
				want := services
				if i%2 == 1 {
					want = other
				}
				if err := a.Apply(context.Background(), Desired{Services: want}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

type kernelLess struct{ idle }

func (kernelLess) Listen(_ lb.Frontend, a netip.AddrPort) (netip.AddrPort, error) { return a, nil }
func (kernelLess) Unlisten(lb.Frontend)                                           {}
