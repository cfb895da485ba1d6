package ipvs

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
)

// many returns Services with a cluster IP and ten endpoints each, as the KEPs of
// kube-proxy measure.
func many(n int) []lb.Service {
	services := make([]lb.Service, n)
	for i := range services {
		var backends []lb.Backend
		for j := range 10 {
			ip := netip.AddrFrom4([4]byte{10, 244, byte(i >> 4), byte(i<<4 | j)})
			backends = append(backends, lb.Backend{Addr: netip.AddrPortFrom(ip, 8080), Ready: true, Serving: true})
		}
		services[i] = simple(fmt.Sprintf("s%05d", i), vip(false, i+1).String(), 80, lb.TCP, backends...)
	}
	return services
}

// BenchmarkSync measures the first Sync of a number of Services, one that has another
// endpoint in one of them, one that has one of them more or less, one without a change, and
// Verify.
func BenchmarkSync(b *testing.B) {
	for _, size := range []int{1000, 5000, 10000} {
		services := many(size)
		node := lb.Node{
			PodCIDRs:  []netip.Prefix{netip.MustParsePrefix("10.240.0.0/24")},
			Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.10")},
		}
		run := func(name string, setup func(*testing.B, *Engine), f func(*testing.B, *Engine, int)) {
			b.Run(fmt.Sprintf("%s/%d", name, size), func(b *testing.B) {
				tb := testbed.NewT(b, testbed.Config{Clients: -1, Pods: -1})
				e := &Engine{}
				err := tb.Node.Do(func() error {
					if err := e.Probe(b.Context()); errors.Is(err, errors.ErrUnsupported) {
						b.Skipf("NOT MEASURED: %v", err)
					} else if err != nil {
						return err
					}
					setup(b, e)
					b.ReportAllocs()
					b.ResetTimer()
					for i := range b.N {
						f(b, e, i)
					}
					b.StopTimer()
					return nil
				})
				if err != nil {
					b.Fatal(err)
				}
			})
		}
		apply := func(b *testing.B, e *Engine, d lb.Delta) {
			if err := e.Sync(b.Context(), d, node); err != nil {
				b.Fatal(err)
			}
		}
		sync := func(b *testing.B, e *Engine) { apply(b, e, whole(services...)) }
		run("first", func(*testing.B, *Engine) {}, func(b *testing.B, e *Engine, i int) {
			if i > 0 {
				b.StopTimer()
				if err := Cleanup(b.Context()); err != nil {
					b.Fatal(err)
				}
				*e = Engine{}
				if err := e.Probe(b.Context()); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
			sync(b, e)
		})
		run("one endpoint", sync, func(b *testing.B, e *Engine, i int) {
			was := services[i%size]
			now := was
			now.Backends = was.Backends[:9+i/size%2] // one less, and back
			apply(b, e, lb.Delta{Changed: []lb.Change{{Old: &was, New: &now}}})
			services[i%size] = now
		})
		run("one Service", sync, func(b *testing.B, e *Engine, i int) {
			if i%2 == 0 { // one less, and back
				apply(b, e, lb.Delta{Removed: []*lb.Service{&services[0]}})
			} else {
				apply(b, e, lb.Delta{Added: []*lb.Service{&services[0]}})
			}
		})
		run("nothing", sync, func(b *testing.B, e *Engine, _ int) { apply(b, e, lb.Delta{}) })
		run("verify", sync, func(b *testing.B, e *Engine, _ int) {
			if good, err := e.Verify(b.Context()); !good || err != nil {
				b.Fatal(good, err)
			}
		})
	}
}
