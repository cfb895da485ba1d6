package metrics

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/agent"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/manifest"
	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/tcp"
	"github.com/sluice-lb/sluice/udp"
)

// Sources are what is read at each scrape. All are needed.
type Sources struct {
	TCP         func() tcp.Stats
	UDP         func() udp.Stats
	Agent       func() agent.Status
	Manifests   func() manifest.Result
	Descriptors *eventloop.Budget
}

// Metrics is a registry with all series of the program.
type Metrics struct {
	registry *prometheus.Registry
	sync     prometheus.Histogram
}

// New makes the registry. version is the value of sluice_build_info's label.
func New(version string, sources Sources) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		// kube-proxy's name and buckets, so that its dashboards go on working.
		sync: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "kubeproxy_sync_proxy_rules_duration_seconds",
			Help:    "Time to bring a change into force.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 15),
		}),
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "sluice_build_info", Help: "1, with the version as a label.", ConstLabels: prometheus.Labels{"version": version},
	})
	build.Set(1)
	m.registry.MustRegister(m.sync, build, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), &collector{sources})
	return m
}

// ObserveSync records how long a change took to apply (agent.Agent.Observe).
func (m *Metrics) ObserveSync(d time.Duration, _ error) { m.sync.Observe(d.Seconds()) }

// Handler serves the series.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Registry: m.registry})
}

// collector reads the sources.
type collector struct{ Sources }

// Describe sends nothing: the set of series is what Collect sends.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

// Collect reads every source once.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	t, u, a := c.TCP(), c.UDP(), c.Agent()
	for i := range tcpSeries {
		tcpSeries[i].send(out, tcpSeries[i].get(&t))
	}
	for i := range udpSeries {
		udpSeries[i].send(out, udpSeries[i].get(&u))
	}
	for i := range agentSeries {
		agentSeries[i].send(out, agentSeries[i].get(&a))
	}
	used.send(out, float64(c.Descriptors.Used()))
	limit.send(out, float64(c.Descriptors.Limit))
	denied.send(out, float64(c.Descriptors.Denied()))

	m := c.Manifests()
	files.send(out, float64(m.Files))
	objects.send(out, float64(m.Objects.Len()))
	for _, p := range m.Problems {
		out <- prometheus.MustNewConstMetric(problem, prometheus.GaugeValue, 1, p.File, strconv.Itoa(p.Line), p.Reason)
	}
}

// series is one name, with fixed labels.
type series struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}

func (s *series) send(out chan<- prometheus.Metric, value float64) {
	out <- prometheus.MustNewConstMetric(s.desc, s.kind, value)
}

// reading is a series that is read from a T.
type reading[T any] struct {
	series
	get func(*T) float64
}

func describe(name, help string, labels []string) *prometheus.Desc {
	l := prometheus.Labels{}
	for i := 0; i+1 < len(labels); i += 2 {
		l[labels[i]] = labels[i+1]
	}
	return prometheus.NewDesc(name, help, nil, l)
}

// gauge and counter make series; labels are names and values in turn.
func gauge(name, help string, labels ...string) series {
	return series{describe(name, help, labels), prometheus.GaugeValue}
}

func counter(name, help string, labels ...string) series {
	return series{describe(name, help, labels), prometheus.CounterValue}
}
