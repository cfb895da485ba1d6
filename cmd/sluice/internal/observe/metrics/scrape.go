package metrics

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// scrape is where the series of one scrape go.
type scrape chan<- prometheus.Metric

// reading is a number that is read for one value of a label.
type reading struct {
	value string
	n     uint64
}

// send sends one series; labels are names, each with its value.
func (s scrape) send(kind prometheus.ValueType, name, help string, n float64, labels ...string) {
	s <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, nil, constant(labels)), kind, n)
}

func constant(labels []string) prometheus.Labels {
	out := make(prometheus.Labels)
	for pair := range slices.Chunk(labels, 2) {
		out[pair[0]] = pair[1]
	}
	return out
}

func (s scrape) gauge(name, help string, n float64, labels ...string) {
	s.send(prometheus.GaugeValue, name, help, n, labels...)
}

func (s scrape) counter(name, help string, n uint64, labels ...string) {
	s.send(prometheus.CounterValue, name, help, float64(n), labels...)
}

// counters sends a series for each value of a label, besides the common labels.
func (s scrape) counters(name, help, label string, all []reading, labels ...string) {
	for _, r := range all {
		s.counter(name, help, r.n, slices.Concat(labels, []string{label, r.value})...)
	}
}

// seconds is a time as Prometheus has it; 0 for none.
func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}
