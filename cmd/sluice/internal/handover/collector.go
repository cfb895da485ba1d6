package handover

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// Collector is what metrics say of handovers. Its zero value is ready to use.
type Collector struct {
	Frozen Histogram     // for how long what this process took over stood still
	Failed atomic.Uint64 // attempts to hand over after which this process served on
	Taken  atomic.Int64  // 1 if this process has taken over
}

var (
	frozenDesc = prometheus.NewDesc("sluice_handover_frozen_seconds",
		"For how long each connection and flow stood still that this process has taken over from the one before.", nil, nil)
	failedDesc = prometheus.NewDesc("sluice_handover_failures_total",
		"Attempts to hand over to another process after which this one served on, with every connection.", nil, nil)
	takenDesc = prometheus.NewDesc("sluice_handover_taken", "1 if this process has taken over from another, 0 if it has started afresh.", nil, nil)
)

// Describe sends the names.
func (c *Collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range [...]*prometheus.Desc{frozenDesc, failedDesc, takenDesc} {
		out <- d
	}
}

// Collect reads the values.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	count, sum, below := c.Frozen.Snapshot()
	out <- prometheus.MustNewConstHistogram(frozenDesc, count, sum.Seconds(), below)
	out <- prometheus.MustNewConstMetric(failedDesc, prometheus.CounterValue, float64(c.Failed.Load()))
	out <- prometheus.MustNewConstMetric(takenDesc, prometheus.GaugeValue, float64(c.Taken.Load()))
}
