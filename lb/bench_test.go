package lb

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
)

// cluster returns n services with a cluster IP, a node port and m ready
// backends each.
func cluster(n, m int) []Service {
	services := make([]Service, n)
	for i := range services {
		s := &services[i]
		s.ID = ID{Namespace: "default", Name: fmt.Sprintf("service-%d", i), Port: "http", Protocol: TCP}
		s.Addresses = []Address{
			{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), 80)},
			{Addr: netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(20000+i)), Kind: NodePort},
		}
		for j := range m {
			ip := netip.AddrFrom4([4]byte{10, byte(128 + i>>8), byte(i), byte(j)})
			s.Backends = append(s.Backends, Backend{
				Addr:  netip.AddrPortFrom(ip, uint16(8080+j>>8)),
				Ready: true, Serving: true,
			})
		}
	}
	return services
}

// refs returns pointers to copies of the services.
func refs(services []Service) []*Service {
	out := make([]*Service, len(services))
	for i, s := range services {
		out[i] = &s
	}
	return out
}

func mustTable(tb testing.TB, services []Service) *Table {
	tb.Helper()
	t, err := NewTable(refs(services), here)
	if err != nil {
		tb.Fatal(err)
	}
	return t
}

func BenchmarkNewTable(b *testing.B) {
	services := cluster(10000, 10)
	b.ReportAllocs()
	for b.Loop() {
		mustTable(b, services)
	}
}

// BenchmarkNext is one change among 10,000 services.
func BenchmarkNext(b *testing.B) {
	all := refs(cluster(10000, 10))
	endpoint, fewer := slices.Clone(all), slices.Delete(slices.Clone(all), 5000, 5001)
	changed := *all[5000]
	changed.Backends = changed.Backends[1:]
	endpoint[5000] = &changed
	for name, other := range map[string][]*Service{"endpoint": endpoint, "service": fewer} {
		b.Run(name, func(b *testing.B) {
			t, _ := NewTable(all, here)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				var err error
				if t, _, err = t.Next([][]*Service{other, all}[i%2], here); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
