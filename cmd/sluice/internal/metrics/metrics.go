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
	Agent       func() agent.Status
	Manifests   func() manifest.Result // nil: Services come from elsewhere
	Descriptors *eventloop.Budget
	Families    []Family          // those that are served
	Services    func() []lb.Stats // by service port; nil: none are told apart
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
	m := &Metrics{registry: prometheus.NewRegistry(), started: time.Now(), kubeProxy: newKubeProxy(sources.Agent, sources.Families)}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "sluice_build_info", Help: "1, with the version as a label.", ConstLabels: prometheus.Labels{"version": version},
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
	for i := range tcpSeries {
		tcpSeries[i].send(out, tcpSeries[i].get(&t))
	}
	for i := range udpSeries {
		udpSeries[i].send(out, udpSeries[i].get(&u))
	}
	for i := range sctpSeries {
		sctpSeries[i].send(out, sctpSeries[i].get(&s))
	}
	if engine, why := c.SCTPEngine(); engine != sctp.Auto {
		out <- prometheus.MustNewConstMetric(sctpEngine, prometheus.GaugeValue, 1, engine.String(), why)
	}
	for i := range agentSeries {
		agentSeries[i].send(out, agentSeries[i].get(&a))
	}
	used.send(out, float64(c.Descriptors.Used()))
	limit.send(out, float64(c.Descriptors.Limit))
	denied.send(out, float64(c.Descriptors.Denied()))

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
