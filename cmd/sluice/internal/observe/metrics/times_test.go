package metrics

import (
	"math"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

// TestTimes: what the data path counts is in the classic buckets and in the native ones, each time once, and both
// families of a Service port are one.
func TestTimes(t *testing.T) {
	b := &balancer.Balancer{Loops: 1, Timed: 1}
	id := lb.ID{Namespace: "default", Name: "web", Protocol: lb.TCP}
	table, err := lb.NewTable([]*lb.Service{{ID: id}}, lb.Node{})
	check(t, err)
	b.Update(table)
	count := b.Queues().Readmit(id).Times(0)
	if count == nil {
		t.Fatal("nothing counts")
	}
	for _, ns := range []int64{0, 5_000, 200_000, 1e6, 0.25e9, 0.25e9 + 1, 3e9, 100e9} {
		count.Observe(balancer.ConnectTime, ns)
	}
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(prometheus.CollectorFunc(func(out chan<- prometheus.Metric) {
		collectTimes(out, func(visit func(lb.ID, *balancer.Times)) {
			b.Counters().Times(visit)
			id := id
			id.IPv6 = true
			b.Counters().Times(func(_ lb.ID, all *balancer.Times) { visit(id, all) })
		})
	}))
	families, err := r.Gather()
	check(t, err)
	for _, f := range families {
		if f.GetName() != "sluice_service_connect_seconds" {
			continue
		}
		h := f.GetMetric()[0].GetHistogram()
		if len(f.GetMetric()) != 1 || h.GetSampleCount() != 16 || math.Abs(h.GetSampleSum()-2*103.501205001) > 1e-6 {
			t.Fatalf("%d histograms, the first is %v", len(f.GetMetric()), h)
		}
		want := map[float64]uint64{0.000244140625: 6, 0.0009765625: 6, 0.00390625: 8, 0.0625: 8, 0.25: 10, 1: 12, 4: 14, 64: 14}
		for _, bucket := range h.GetBucket() {
			if n, ok := want[bucket.GetUpperBound()]; ok && n != bucket.GetCumulativeCount() {
				t.Errorf("%d took up to %g s, want %d", bucket.GetCumulativeCount(), bucket.GetUpperBound(), n)
			}
			delete(want, bucket.GetUpperBound())
		}
		if len(want) > 0 {
			t.Errorf("there are no buckets %v in %v", want, h)
		}
		native, last := int64(h.GetZeroCount()), int64(0)
		for _, d := range h.GetPositiveDelta() {
			last += d
			native += last
		}
		if native != 16 || h.GetZeroCount() != 4 || h.GetSchema() != 2 {
			t.Errorf("the native histogram has %d, %d of them about 0, by schema %d", native, h.GetZeroCount(), h.GetSchema())
		}
		return
	}
	t.Error("there is no histogram")
}
