package metrics

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/agent"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/manifest"
	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/redirect"
	"github.com/sluice-lb/sluice/sctp"
	"github.com/sluice-lb/sluice/tcp"
	"github.com/sluice-lb/sluice/udp"
)

// Sources are what is read at each scrape. All are needed but those that may be nil.
type Sources struct {
	TCP         func() tcp.Stats
	UDP         func() udp.Stats
	SCTP        func() sctp.Stats
	SCTPEngine  func() (engine sctp.Engine, why string)
	SCTPForced  bool // --sctp-engine requests an engine
	Agent       func() agent.Status
	Manifests   func() manifest.Result // nil: Services come from elsewhere
	Descriptors *eventloop.Budget
	Families    []Family          // those that are served
	Services    func() []lb.Stats // by service port; nil: they have no series
	Events      func() Events     // nil: none are counted

	// MaxServices is how many service ports have series of their own. 0: 1,000.
	MaxServices int
}

// Family is an address family and who steers it.
type Family struct {
	Name  string                // IPv4 or IPv6
	Stats func() redirect.Stats // nil: no rules are written for it
}

// Events counts what was reported of nodes and Services.
type Events struct{ Reported, Dropped uint64 }

// Metrics is a registry with all series of the program.
type Metrics struct {
	registry *prometheus.Registry
	started  time.Time
	kubeProxy
}

// New makes the registry. version is the value of sluice_build_info's label.
func New(version string, sources Sources) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry(), started: time.Now(),
		kubeProxy: newKubeProxy(sources.Agent, sources.Families)}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "sluice_build_info", Help: "1, with the version as a label.",
		ConstLabels: prometheus.Labels{"version": version},
	})
	build.Set(1)
	m.registry.MustRegister(build, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), &m.kubeProxy, &collector{sources})
	m.registry.MustRegister(m.counted()...)
	m.registry.MustRegister(client.counted()...)
	client.register()
	if sources.Services != nil {
		m.registry.MustRegister(newServices(sources.Services, sources.MaxServices))
	}
	return m
}

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
	t, u, s, a := c.TCP(), c.UDP(), c.SCTP(), c.Agent()
	sendAll(out, tcpMetrics, &t)
	sendAll(out, udpMetrics, &u)
	sendAll(out, sctpMetrics, &s)
	sendAll(out, agentMetrics, &a)
	if engine, _ := c.SCTPEngine(); engine != sctp.Auto {
		reason := "detected"
		if c.SCTPForced {
			reason = "requested"
		}
		out <- prometheus.MustNewConstMetric(sctpEngine, prometheus.GaugeValue, 1, engine.String(), reason)
	}
	used.send(out, float64(c.Descriptors.Used()))
	limit.send(out, float64(c.Descriptors.Limit))
	denied.send(out, float64(c.Descriptors.Exhausted()))

	if c.Events != nil {
		e := c.Events()
		reported.send(out, float64(e.Reported))
		eventsDropped.send(out, float64(e.Dropped))
	}
	if c.Manifests == nil {
		return
	}
	m := c.Manifests()
	files.send(out, float64(m.Files))
	objects.send(out, float64(m.Objects.Len()))
	count := make(map[manifest.Error]int) // by file and kind
	for _, p := range m.Problems {
		count[manifest.Error{File: p.File, Kind: p.Kind}]++
	}
	for p, n := range count {
		out <- prometheus.MustNewConstMetric(problems, prometheus.GaugeValue, float64(n), p.File, string(p.Kind))
	}
}

// metric is a metric that is read from a T: with one label and a value of it for
// each series, or one series without a label.
type metric[T any] struct {
	desc   *prometheus.Desc
	kind   prometheus.ValueType
	values []value[T]
}

// value is a value of the label, and what is read of a T for it.
type value[T any] struct {
	label string
	get   func(*T) float64
}

// values are the series of a metric, by the name of the label; empty: one series.
type values[T any] struct {
	label string
	all   []value[T]
}

// one is a metric without a label.
func one[T any](get func(*T) float64) values[T] { return values[T]{all: []value[T]{{get: get}}} }

// by is a metric with a series for each value of a label.
func by[T any](label string, all []value[T]) values[T] { return values[T]{label, all} }

// counter and gauge declare a metric.
func counter[T any](name, help string, v values[T]) metric[T] {
	return metric[T]{describe(name, help, v.label), prometheus.CounterValue, v.all}
}

func gauge[T any](name, help string, v values[T]) metric[T] {
	return metric[T]{describe(name, help, v.label), prometheus.GaugeValue, v.all}
}

func describe(name, help, label string) *prometheus.Desc {
	if label == "" {
		return prometheus.NewDesc(name, help, nil, nil)
	}
	return prometheus.NewDesc(name, help, []string{label}, nil)
}

// sendAll sends the metrics with the values that from has.
func sendAll[T any](out chan<- prometheus.Metric, metrics []metric[T], from *T) {
	for _, m := range metrics {
		for _, v := range m.values {
			if v.label == "" {
				out <- prometheus.MustNewConstMetric(m.desc, m.kind, v.get(from))
			} else {
				out <- prometheus.MustNewConstMetric(m.desc, m.kind, v.get(from), v.label)
			}
		}
	}
}

// series is one series.
type series struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}

func single(kind prometheus.ValueType, name, help string) series {
	return series{prometheus.NewDesc(name, help, nil, nil), kind}
}

func (s *series) send(out chan<- prometheus.Metric, value float64) {
	out <- prometheus.MustNewConstMetric(s.desc, s.kind, value)
}
