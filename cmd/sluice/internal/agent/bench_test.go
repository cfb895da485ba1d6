package agent

import (
	"context"
	"net/netip"
	"testing"

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
	services := numbered(10_000, 10)
	fewer := append([]lb.Service(nil), services...)
	fewer[7].Backends = fewer[7].Backends[1:]
	for name, other := range map[string][]lb.Service{"endpoint": fewer, "service": services[:9_999]} {
		b.Run(name, func(b *testing.B) {
			a := steering(idle{})
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
