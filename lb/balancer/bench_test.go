package balancer

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/sluice-lb/sluice/lb"
)

// cluster returns n services with a cluster IP, a node port and m ready
// backends each.
func cluster(n, m int) []lb.Service {
	services := make([]lb.Service, n)
	for i := range services {
		s := &services[i]
		s.ID = lb.ID{Namespace: "default", Name: fmt.Sprintf("service-%d", i), Port: "http", Protocol: lb.TCP}
		s.Addresses = []lb.Address{
			{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), 80)},
			{Addr: netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(20000+i)), Kind: lb.NodePort},
		}
		for j := range m {
			ip := netip.AddrFrom4([4]byte{10, byte(128 + i>>8), byte(i), byte(j)})
			s.Backends = append(s.Backends, lb.Backend{
				Addr:  netip.AddrPortFrom(ip, uint16(8080+j>>8)),
				Ready: true, Serving: true,
			})
		}
	}
	return services
}

// refs returns pointers to copies of the services.
func refs(services []lb.Service) []*lb.Service {
	out := make([]*lb.Service, len(services))
	for i, s := range services {
		out[i] = &s
	}
	return out
}

func mustTable(tb testing.TB, services []lb.Service) *lb.Table {
	tb.Helper()
	t, err := lb.NewTable(refs(services), here)
	if err != nil {
		tb.Fatal(err)
	}
	return t
}

func BenchmarkUpdate(b *testing.B) {
	one, two := cluster(10000, 10), cluster(10000, 10)
	first := mustTable(b, one)
	same := mustTable(b, two) // equal, but nothing shared
	one[5000].Backends = one[5000].Backends[1:]
	churned := mustTable(b, one)

	b.Run("first", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var picker Balancer
			picker.Update(first)
		}
	})
	b.Run("unchanged", func(b *testing.B) {
		var picker Balancer
		picker.Update(first)
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			picker.Update([]*lb.Table{same, first}[i%2])
		}
	})
	b.Run("one service", func(b *testing.B) {
		var picker Balancer
		picker.Update(first)
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			picker.Update([]*lb.Table{churned, first}[i%2])
		}
	})
}

// BenchmarkPick measures a Pick and its Done, which is 6 ns of it.
func BenchmarkPick(b *testing.B) {
	for _, bench := range []struct {
		name               string
		services, backends int
		affinity           bool
		nodePort           bool
		rules              lb.Address // of the cluster IP
	}{
		{name: "one service", services: 1, backends: 10},
		{name: "10,000 services", services: 10000, backends: 10},
		{name: "node port", services: 10000, backends: 10, nodePort: true},
		{name: "affinity", services: 1, backends: 10, affinity: true},
		{name: "affinity, 1,000 backends", services: 1, backends: 1000, affinity: true},
		{name: "policy Local", services: 1, backends: 10, rules: lb.Address{Kind: lb.ExternalIP, Local: true}},
		{name: "sources", services: 1, backends: 10, rules: lb.Address{Kind: lb.LoadBalancerIP, Sources: prefixes("198.51.100.0/24", "192.0.2.0/24")}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			services := cluster(bench.services, bench.backends)
			if bench.affinity {
				services[0].AffinityTimeout = 1e9
			}
			a := &services[0].Addresses[0]
			a.Kind, a.Local, a.Sources = bench.rules.Kind, bench.rules.Local, bench.rules.Sources
			services[0].Backends[0].Local = true
			var picker Balancer
			picker.Update(mustTable(b, services))
			f := Flow{Frontend: lb.Frontend{Protocol: lb.TCP, Addr: services[0].Addresses[0].Addr}, Client: netip.MustParseAddr("192.0.2.1")}
			if bench.nodePort {
				f.Frontend.Addr = netip.AddrPortFrom(netip.MustParseAddr("192.0.2.9"), services[0].Addresses[1].Addr.Port())
			}
			b.ReportAllocs()
			for b.Loop() {
				c, err := picker.Pick(f)
				if err != nil {
					b.Fatal(err)
				}
				c.Done(nil)
			}
		})
	}
}

// BenchmarkAlgorithms is the same among 100 backends, which have some connections each.
func BenchmarkAlgorithms(b *testing.B) {
	for _, scheduler := range append(everyAlgorithm(), "mh,mh-port") {
		for _, weighted := range []bool{false, true} {
			name := scheduler
			if weighted {
				name += ", weights"
			}
			b.Run(name, func(b *testing.B) {
				services := cluster(1, 100)
				s := &services[0]
				s.Policies = &lb.Policies{Scheduler: scheduler}
				for i := range s.Backends {
					if weighted {
						s.Backends[i].Weight = uint16(1 + i%7)
					}
				}
				picker := Balancer{Seed: 1}
				picker.Update(mustTable(b, services))
				f := Flow{Frontend: lb.Frontend{Protocol: lb.TCP, Addr: s.Addresses[0].Addr}, Client: netip.MustParseAddr("192.0.2.1")}
				for i := range 1050 { // half of the backends have one more than the others
					c, _ := picker.Pick(f)
					c.Took(int64(i)*1e4, int64(i)*1e6)
				}
				f.Now = 2e9
				b.ReportAllocs()
				for b.Loop() {
					c, err := picker.Pick(f)
					if err != nil {
						b.Fatal(err)
					}
					c.Done(nil)
				}
			})
		}
	}
}

func BenchmarkPickParallel(b *testing.B) {
	services := cluster(1, 10)
	var picker Balancer
	picker.Update(mustTable(b, services))
	f := Flow{Frontend: lb.Frontend{Protocol: lb.TCP, Addr: services[0].Addresses[0].Addr}}
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			c, _ := picker.Pick(f)
			c.Done(nil)
		}
	})
}

// BenchmarkSums is what it costs to look at every service.
func BenchmarkSums(b *testing.B) {
	var picker Balancer
	picker.Update(mustTable(b, cluster(10000, 3)))
	b.ReportAllocs()
	for b.Loop() {
		picker.Counters().Totals()
	}
}
