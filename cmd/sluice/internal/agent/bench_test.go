package agent

import (
	"context"
	"net/netip"
	"slices"
	"testing"

	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/redirect"
)

// idle takes plans and sockets without looking.
type idle struct{}

func (idle) Sync(context.Context, redirect.Update) error                    { return nil }
func (idle) Verify(context.Context) (bool, error)                           { return true, nil }
func (idle) Listen(_ lb.Frontend, a netip.AddrPort) (netip.AddrPort, error) { return a, nil }
func (idle) Unlisten(lb.Frontend)                                           {}
func (idle) TableChanged()                                                  {}

// BenchmarkApply is one change among 10,000 Services of 10 endpoints: an endpoint
// less, and the whole Service less.
func BenchmarkApply(b *testing.B) {
	services := numbered(10_000, 10)
	fewer := slices.Clone(services)
	fewer[7] = withFewer(fewer[7])
	for name, other := range map[string][]*lb.Service{"endpoint": fewer, "service": services[:9_999]} {
		b.Run(name, func(b *testing.B) {
			a := idleAgent()
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
