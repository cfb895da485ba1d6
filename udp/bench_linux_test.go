package udp

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

// BenchmarkFlowLookup finds the flow of a datagram among others, each one the least
// recently active so far, and notes that it was active.
func BenchmarkFlowLookup(b *testing.B) {
	for _, flows := range []int{1, 1_000, 100_000} {
		b.Run(fmt.Sprintf("%d flows", flows), func(b *testing.B) {
			table, err := lb.NewTable([]*lb.Service{service(1, netip.MustParseAddrPort("127.0.0.1:9"))}, lb.Node{})
			if err != nil {
				b.Fatal(err)
			}
			of := new(balancer.Balancer)
			of.Update(table)
			group, err := eventloop.NewGroup(1)
			if err != nil {
				b.Fatal(err)
			}
			defer group.Close()
			ln := newShards(&Server{Loops: group, LB: of})[0].newListener(frontend(1, false))
			keys := make([]flowKey, flows)
			for i := range keys {
				choice, err := of.Pick(balancer.Flow{Frontend: ln.frontend, Client: netip.MustParseAddr("192.0.2.1")})
				if err != nil {
					b.Fatal(err)
				}
				client := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
				keys[i] = flowKey{client: netip.AddrPortFrom(client, 1024), local: netip.MustParseAddr("192.0.2.10")}
				ln.keep(&flow{ln: ln, key: keys[i], choice: choice}, lb.Name{Namespace: "default", Name: "s1"})
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if f, _ := ln.flow(&keys[i%flows], int64(i)); f == nil {
					b.Fatal("the flow is not found")
				}
			}
		})
	}
}
