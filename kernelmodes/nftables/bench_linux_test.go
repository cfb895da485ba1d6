package nftables

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/kernelmodes/lab"
	"github.com/sluice-lb/sluice/lb"
)

// BenchmarkChange writes 1,000 and 5,000 Services of ten endpoints each, which is said, and then changes of one
// endpoint: one that another replaces, and one that comes or goes, so that a rule is written.
func BenchmarkChange(b *testing.B) {
	h := testbed.NewHostsT(b, "node")[0]
	for _, n := range []int{1000, 5000} {
		services := make([]lb.Service, n)
		for i := range services {
			services[i] = lab.Plain(false, i+1)
			for k := range 10 {
				services[i].Backends = append(services[i].Backends, lab.Plain(false, 1, 10*i+k+1).Backends...)
			}
		}
		e, start := new(Engine), time.Now()
		syncOn(b, h, e, lab.Whole(services...))
		b.Logf("%d Services are written after %v", n, time.Since(start))
		old, other := services[n/2], services[n/2]
		other.Backends = slices.Clone(old.Backends)
		other.Backends[3] = lab.Plain(false, 1, 60000).Backends[0]
		fewer := old
		fewer.Backends = old.Backends[:9]
		for name, now := range map[string]*lb.Service{"replaced": &other, "fewer": &fewer} {
			b.Run(fmt.Sprintf("%d/%s", n, name), func(b *testing.B) {
				was, is := &old, now
				for b.Loop() {
					syncOn(b, h, e, lb.Delta{Changed: []lb.Change{{Old: was, New: is}}})
					was, is = is, was
				}
				syncOn(b, h, e, lb.Delta{Changed: []lb.Change{{Old: was, New: &old}}})
			})
		}
		syncOn(b, h, e, lab.Whole())
	}
}
