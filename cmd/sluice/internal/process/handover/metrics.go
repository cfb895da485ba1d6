package handover

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	dto "github.com/prometheus/client_model/go"
)

// Metrics are the series of hand-overs, as a prometheus.Collector. All methods may be called
// by any goroutine.
type Metrics struct {
	prometheus.Collector
	failures prometheus.Counter
	last     *prometheus.GaugeVec // by result
	frozen   prometheus.Histogram
}

// NewMetrics returns the series of one process.
func NewMetrics() *Metrics {
	registry := prometheus.NewRegistry()
	series := promauto.With(registry)
	return &Metrics{
		Collector: registry,
		frozen: series.NewHistogram(prometheus.HistogramOpts{Name: "sluice_handover_frozen_seconds",
			Help:    "[ALPHA] Pause of each connection and flow that this process has taken over from the one before.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5}}),
		failures: series.NewCounter(prometheus.CounterOpts{Name: "sluice_handover_failures_total",
			Help: "[BETA] Attempts to hand over to another process after which this one served on, with every " +
				"connection."}),
		last: series.NewGaugeVec(prometheus.GaugeOpts{Name: "sluice_handover_last_timestamp_seconds",
			Help: "[ALPHA] Time of the last hand-over by result: succeeded (to this process), or failed (this " +
				"process was to hand over, and serves on)."}, []string{"result"}),
	}
}

// Took counts that this process has taken over.
func (m *Metrics) Took() {
	m.last.WithLabelValues("succeeded").SetToCurrentTime()
}

// Failed counts a hand-over that did not take place, after which this process serves on.
func (m *Metrics) Failed() {
	m.failures.Inc()
	m.last.WithLabelValues("failed").SetToCurrentTime()
}

// Frozen counts the pause of one connection or flow that was taken over.
func (m *Metrics) Frozen(pause time.Duration) { m.frozen.Observe(pause.Seconds()) }

// FrozenQuantile returns the upper bound of the bucket that a quantile of the pauses falls
// into, or the longest if that is shorter or in none.
func (m *Metrics) FrozenQuantile(q float64, longest time.Duration) time.Duration {
	var out dto.Metric
	if m.frozen.Write(&out) != nil {
		return longest
	}
	for _, b := range out.Histogram.Bucket {
		if float64(b.GetCumulativeCount()) >= q*float64(out.Histogram.GetSampleCount()) {
			return min(time.Duration(b.GetUpperBound()*float64(time.Second)), longest)
		}
	}
	return longest
}
