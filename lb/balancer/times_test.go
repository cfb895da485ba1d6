package balancer

import (
	"math"
	"net/netip"
	"testing"

	"github.com/sluice-lb/sluice/lb"
)

// TestBuckets: each time is in the bucket whose bounds are around it, of which the upper one belongs to it.
func TestBuckets(t *testing.T) {
	bound := func(i int) float64 { return math.Exp2(float64(FirstBucket+i) / BucketsPerDoubling) }
	for _, ns := range []int64{0, 1, 7_629, 7_630, 10_000, 123_456, 1e6, 3_906_250, 3_906_251, 0.25e9, 0.25e9 + 1, 1e9,
		1e9 + 1, 3e9, 86_400e9, 1 << 50, math.MaxInt64} {
		i, s := bucket(ns), float64(ns)/1e9
		if i > 0 && s <= bound(i-1) || i < buckets-1 && s > bound(i) {
			t.Errorf("%d ns are in bucket %d, from %g to %g s", ns, i, bound(i-1), bound(i))
		}
	}
}

// TestTimes: as many service ports as may have times of their own, others are one sum; who has left makes room, and
// another Balancer goes on.
func TestTimes(t *testing.T) {
	id := func(name string) lb.ID { return lb.ID{Namespace: "default", Name: name, Protocol: lb.TCP} }
	table := func(names ...string) *lb.Table {
		var all []*lb.Service
		for i, name := range names {
			all = append(all, &lb.Service{ID: id(name), Addresses: []lb.Address{
				{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), 80)}}})
		}
		table, err := lb.NewTable(all, lb.Node{})
		if err != nil {
			t.Fatal(err)
		}
		return table
	}
	counts := func(b *Balancer) map[string]uint64 {
		all := make(map[string]uint64)
		b.Counters().Times(func(id lb.ID, times *Times) {
			for _, n := range times[Duration].Buckets {
				all[id.Name] += n
			}
		})
		return all
	}
	b := &Balancer{Loops: 2, Timed: 2}
	b.Update(table("a", "b", "c", "d"))
	for loop, name := range []string{"a", "b", "c", "d", "c"} {
		b.Queues().Readmit(id(name)).Times(loop%2).Observe(Duration, int64(loop))
	}
	check := func(b *Balancer, want map[string]uint64) {
		t.Helper()
		got := counts(b)
		if len(got) != len(want) {
			t.Errorf("%v, want %v", got, want)
		}
		for name, n := range want {
			if got[name] != n {
				t.Errorf("%v, want %v", got, want)
			}
		}
	}
	check(b, map[string]uint64{"a": 1, "b": 1, "": 3})
	for range 2 { // as in a hand-over, which repeats what has changed
		other := &Balancer{Loops: 3, Timed: 1}
		other.Update(table("a", "b", "c", "d"))
		for range 2 {
			b.Counters().Times(func(id lb.ID, times *Times) { other.Memory().RememberTimes(id, times) })
		}
		check(other, map[string]uint64{"a": 1, "": 4})
		other.Queues().Readmit(id("a")).Times(2).Observe(Duration, 1)
		other.Queues().Readmit(id("b")).Times(2).Observe(Duration, 1)
		check(other, map[string]uint64{"a": 2, "": 5})
	}
	gone := b.Queues().Readmit(id("a"))
	b.Update(table("b", "c", "d", "e"))
	b.Queues().Readmit(id("e")).Times(0).Observe(Duration, 1)
	gone.Times(1).Observe(Duration, 1)
	check(b, map[string]uint64{"b": 1, "e": 1, "": 3})
	times := b.Queues().Readmit(id("b"))
	if n := testing.AllocsPerRun(100, func() { times.Times(0).Observe(FirstByteTime, 5e6) }); n > 0 {
		t.Errorf("counting allocates %g times", n)
	}
}

// TestEnds: what does not end as it should is counted for its service, also by the next Balancer.
func TestEnds(t *testing.T) {
	frontend := lb.Frontend{Protocol: lb.TCP, Addr: netip.MustParseAddrPort("10.0.0.1:80")}
	table, err := lb.NewTable([]*lb.Service{{ID: lb.ID{Namespace: "default", Name: "a", Protocol: lb.TCP},
		Addresses: []lb.Address{{Addr: frontend.Addr}}}}, lb.Node{})
	if err != nil {
		t.Fatal(err)
	}
	var b, next Balancer
	b.Update(table)
	next.Update(table)
	_, a, _ := b.Queues().Admit(&frontend, netip.Addr{}, 0)
	if a.Ended(lb.Normal); b.Counters().All()[0].Ends != nil {
		t.Error("an end that is as it should be is counted")
	}
	a.Ended(lb.ServerData)
	b.Ended(frontend, lb.ClientData)
	a.Ended(lb.ClientData)
	next.Memory().Remember(b.Counters().All())
	if got, want := *next.Counters().All()[0].Ends, (lb.Ends{lb.ServerData: 1, lb.ClientData: 2}); got != want {
		t.Errorf("the ends are %v, want %v", got, want)
	}
}

// BenchmarkObserve is what a connection pays for its three times.
func BenchmarkObserve(b *testing.B) {
	times := new(LoopTimes)
	b.ReportAllocs()
	for ns := int64(0); b.Loop(); ns += 977 {
		times.Observe(ConnectTime, ns)
		times.Observe(FirstByteTime, 2*ns)
		times.Observe(Duration, 3*ns)
	}
}
