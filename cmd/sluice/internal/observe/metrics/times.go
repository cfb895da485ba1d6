package metrics

import (
	"fmt"
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

// The histograms of a service port are counted by the data path in fine buckets, those of native histograms. Classic
// ones, which all formats of a scrape have, are sums of these: their bounds are powers of four.

// doublings are the bounds of classic buckets, as powers of two.
type doublings struct{ least, most int }

// timesSeries are the histograms, by measure.
var timesSeries = [balancer.Measures]struct {
	*prometheus.Desc
	doublings
}{
	balancer.ConnectTime: {ofService("connect_seconds",
		"[BETA] Time from accepting a client to an endpoint's accept, all attempts together, without waits by hold or "+
			"in a queue."), doublings{-12, 6}},
	balancer.FirstByteTime: {ofService("first_byte_seconds",
		"[ALPHA] Time from accepting a client to the endpoint's first byte or end of stream."), doublings{-12, 6}},
	balancer.Duration: {ofService("connection_duration_seconds",
		"[ALPHA] Time from accepting a client to the end of its connection, for connections that an endpoint "+
			"accepted."), doublings{-10, 18}},
}

// collectTimes sends the histograms of each service port that has its own, and of the sum of others. Both families of a
// service port are one.
func collectTimes(out chan<- prometheus.Metric, times func(func(lb.ID, *balancer.Times))) {
	all := make(map[serviceKey]*balancer.Times)
	times(func(id lb.ID, of *balancer.Times) {
		key := keyOf(&id)
		if id == (lb.ID{}) {
			key = serviceKey{service: "__other__"}
		}
		if sum := all[key]; sum != nil {
			sum.Add(of)
		} else {
			all[key] = of
		}
	})
	for key, of := range all {
		for m := range of {
			series := &timesSeries[m]
			out <- histogram(series.Desc, series.doublings, &of[m], key)
		}
	}
}

// histogram is both the classic and the native form of h.
func histogram(desc *prometheus.Desc, d doublings, h *balancer.Histogram, key serviceKey) prometheus.Metric {
	count, sum := uint64(0), float64(h.Sum)/float64(time.Second)
	fine, classic := make(map[int]int64), make(map[float64]uint64)
	next := d.least
	for i, n := range h.Buckets {
		if count += n; n > 0 && i > 0 {
			fine[balancer.FirstBucket+i] = int64(n)
		}
		if balancer.FirstBucket+i == next*balancer.BucketsPerDoubling && next <= d.most {
			classic[math.Exp2(float64(next))] = count
			next += 2
		}
	}
	labels := []string{key.namespace, key.service, key.port, key.protocol}
	const schema = 2
	return bothForms{
		Metric: prometheus.MustNewConstHistogram(desc, count, sum, classic, labels...),
		native: prometheus.MustNewConstNativeHistogram(desc, count, sum, fine, nil, h.Buckets[0], schema,
			math.Exp2(float64(balancer.FirstBucket)/balancer.BucketsPerDoubling), time.Time{}, labels...),
	}
}

// bothForms is a classic histogram with the buckets of a native one beside its own. A format without those leaves them
// out.
type bothForms struct {
	prometheus.Metric
	native prometheus.Metric
}

// Write writes both.
func (b bothForms) Write(to *dto.Metric) error {
	var native dto.Metric
	if err := b.native.Write(&native); err != nil {
		return fmt.Errorf("write native histogram: %w", err)
	}
	if err := b.Metric.Write(to); err != nil {
		return fmt.Errorf("write classic histogram: %w", err)
	}
	h, n := to.Histogram, native.Histogram
	h.Schema, h.ZeroThreshold, h.ZeroCount = n.Schema, n.ZeroThreshold, n.ZeroCount
	h.PositiveSpan, h.PositiveDelta = n.PositiveSpan, n.PositiveDelta
	return nil
}
