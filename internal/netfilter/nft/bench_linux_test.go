package nft

import (
	"context"
	"fmt"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// BenchmarkWrite is a table of 10,000 chains with a rule and 100,000 elements: all of it, a change of one element, a
// look at what the kernel has, and the repair when the table was deleted; beside a monitor, as the program has one.
func BenchmarkWrite(b *testing.B) {
	testbed.NewHostsT(b, "host")[0].Enter(b)
	m, err := OpenMonitor()
	if err != nil {
		b.Fatal(err)
	}
	ended := make(chan error)
	ctx, cancel := context.WithCancel(b.Context())
	go func() { ended <- m.Run(ctx, func() {}) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			b.Error(err)
		}
	}()
	x := &Table{Name: "large"}
	x.AddSet(Set{Name: "services", Key: []Field{Address, Protocol, Port}, Verdicts: true})
	shard := func(service int) string { return fmt.Sprintf("endpoints-%02x", service%256) }
	for i := range 256 {
		x.AddSet(Set{Name: shard(i), Key: []Field{Mark, Mark}, Data: []Field{Address, Port}})
	}
	ip := addr("10.0.0.0")
	endpoint := func(i int, port uint16) Element {
		return Element{Key: Key(uint32(i/10), uint32(i%10)), Data: Key(ip, port)}
	}
	for i := range 100_000 {
		if i%10 == 0 {
			name := fmt.Sprintf("svc-%012d", i)
			x.SetChain(name, nil, []Rule{
				NewRule(false).Map(shard(i/10), Constant(uint32(i/10)), Rotation(10)).DNAT().Rule("default/web"),
			})
			x.Add("services", Element{Key: Key(ip, uint8(6), uint16(i/10)), Data: name}, 1)
		}
		x.Add(shard(i/10), endpoint(i, 80), 1)
	}
	b.Run("whole", func(b *testing.B) {
		for b.Loop() {
			x.Forget()
			if err := x.Write(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("deleted", func(b *testing.B) { // by another program, until all is there again
		for b.Loop() {
			b.StopTimer()
			x.Forget()
			if err := x.Write(); err != nil {
				b.Fatal(err)
			}
			if _, err := Remove(false, x.Name); err != nil {
				b.Fatal(err)
			}
			x.verified = 0
			b.StartTimer()
			if ok, err := x.Verify(b.Context()); ok || err != nil {
				b.Fatal(ok, err)
			}
			if err := x.Write(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("look", func(b *testing.B) { // after another program has written anything
		for b.Loop() {
			x.verified = 0
			if ok, err := x.Verify(b.Context()); !ok || err != nil {
				b.Fatal(ok, err)
			}
		}
	})
	b.Run("change", func(b *testing.B) {
		port := uint16(80)
		for b.Loop() {
			x.Add(shard(0), endpoint(5, port), -1)
			port++
			x.Add(shard(0), endpoint(5, port), 1)
			if err := x.Write(); err != nil {
				b.Fatal(err)
			}
		}
	})
}
