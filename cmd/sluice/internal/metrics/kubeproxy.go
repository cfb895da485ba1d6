package metrics

import (
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/agent"
)

// syncBuckets and programmingBuckets are kube-proxy's, in seconds.
var (
	syncBuckets        = prometheus.ExponentialBuckets(0.001, 2, 15)
	programmingBuckets = slices.Concat(
		prometheus.LinearBuckets(0.25, 0.25, 2),
		prometheus.LinearBuckets(1, 1, 59),
		prometheus.LinearBuckets(60, 5, 12),
		prometheus.LinearBuckets(120, 30, 7),
	)
)

// kubeProxy is the series of kube-proxy 1.36, by its names, labels and buckets, so that
// dashboards and alerts go on working; those that count are here, those that are
// read are in series.go.
type kubeProxy struct {
	agent    func() agent.Status
	families []*steering

	sync, full, partial, programming, conntrack *prometheus.HistogramVec
	healthz, livez                              *prometheus.CounterVec
}

// steering is a family with what its last attempt did.
type steering struct {
	Family
	restores uint64      // that had been run at the end of it
	wrote    atomic.Bool // rules
}

// What is read, with ip_family as the last label.
var (
	lastApplied = perFamily("sync_proxy_rules_last_timestamp_seconds", "Time of the last applied change.")
	lastQueued  = perFamily("sync_proxy_rules_last_queued_timestamp_seconds",
		"Time of the last change seen.")
	noLocal = perFamily("sync_proxy_rules_no_local_endpoints_total",
		"Service ports with traffic policy Local and endpoints on other nodes only.", "traffic_policy")
	restoreFailures = perFamily("sync_proxy_rules_iptables_restore_failures_total",
		"Runs of iptables-restore that failed.")
	rules     = perFamily("sync_proxy_rules_iptables_total", "iptables rules of Sluice.", "table")
	rulesLast = perFamily("sync_proxy_rules_iptables_last",
		"iptables rules written by the last sync.", "table")
	flowsDeleted = perFamily("conntrack_reconciler_deleted_entries_total",
		"Stale conntrack entries deleted.")
)

func perFamily(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("kubeproxy_"+name, help, append(labels, "ip_family"), nil)
}

func newKubeProxy(status func() agent.Status, families []Family) kubeProxy {
	histogram := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		opts := prometheus.HistogramOpts{Name: "kubeproxy_" + name, Help: help, Buckets: buckets}
		return prometheus.NewHistogramVec(opts, []string{"ip_family"})
	}
	answers := func(probe string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kubeproxy_proxy_" + probe + "_total",
			Help: "Answers to /" + probe + ", by HTTP status."}, []string{"code"})
		c.WithLabelValues("200")
		c.WithLabelValues("503")
		return c
	}
	k := kubeProxy{
		agent: status,
		sync:  histogram("sync_proxy_rules_duration_seconds", "Time to apply a change.", syncBuckets),
		full: histogram("sync_full_proxy_rules_duration_seconds",
			"Time to apply a change that needed rules to be written.", syncBuckets),
		partial: histogram("sync_partial_proxy_rules_duration_seconds",
			"Time to apply a change that needed at most set members to be written.", syncBuckets),
		programming: histogram("network_programming_duration_seconds",
			"Time from the change of an endpoint, by the annotation of its EndpointSlice, until it was "+
				"applied here.", programmingBuckets),
		conntrack: histogram("conntrack_reconciler_sync_duration_seconds",
			"Time to find and delete stale conntrack entries after a change.", syncBuckets),
		healthz: answers("healthz"),
		livez:   answers("livez"),
	}
	for _, f := range families {
		k.families = append(k.families, &steering{Family: f})
		for _, h := range []*prometheus.HistogramVec{k.sync, k.programming} {
			h.WithLabelValues(f.Name)
		}
		if f.Stats != nil {
			for _, h := range []*prometheus.HistogramVec{k.full, k.partial, k.conntrack} {
				h.WithLabelValues(f.Name)
			}
		}
	}
	return k
}

// counted are the series that count by themselves.
func (k *kubeProxy) counted() []prometheus.Collector {
	return []prometheus.Collector{k.sync, k.full, k.partial, k.programming, k.conntrack, k.healthz, k.livez}
}

// Describe sends nothing, as collector's.
func (k *kubeProxy) Describe(chan<- *prometheus.Desc) {}

// Collect reads what is read.
func (k *kubeProxy) Collect(out chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, kind, value, labels...)
	}
	status := k.agent()
	for _, f := range k.families {
		local := status.NoLocal[0]
		if f.Name == familyName(true) {
			local = status.NoLocal[1]
		}
		send(noLocal, prometheus.GaugeValue, float64(local.Internal), "internal", f.Name)
		send(noLocal, prometheus.GaugeValue, float64(local.External), "external", f.Name)
		send(lastApplied, prometheus.GaugeValue, seconds(status.LastApplied), f.Name)
		send(lastQueued, prometheus.GaugeValue, seconds(status.LastQueued), f.Name)
		if f.Stats == nil {
			continue
		}
		stats := f.Stats()
		send(restoreFailures, prometheus.CounterValue, float64(stats.Failures), f.Name)
		send(flowsDeleted, prometheus.CounterValue, float64(stats.FlowsDeleted), f.Name)
		for _, t := range stats.Rules {
			last := 0
			if f.wrote.Load() {
				last = t.Rules
			}
			send(rules, prometheus.GaugeValue, float64(t.Rules), t.Table, f.Name)
			send(rulesLast, prometheus.GaugeValue, float64(last), t.Table, f.Name)
		}
	}
}

// ObserveAttempt records an attempt to apply a change (agent.Agent.Observe). It is called
// by one goroutine.
func (m *Metrics) ObserveAttempt(a agent.Attempt) {
	for _, f := range m.families {
		m.sync.WithLabelValues(f.Name).Observe(a.Took.Seconds())
		if f.Stats == nil {
			continue
		}
		restores := f.Stats().Restores
		wrote := restores != f.restores
		f.restores = restores
		f.wrote.Store(wrote)
		if wrote {
			m.full.WithLabelValues(f.Name).Observe(a.Took.Seconds())
		} else {
			m.partial.WithLabelValues(f.Name).Observe(a.Took.Seconds())
		}
	}
	for _, t := range a.Changes.Triggers {
		// Older triggers would measure the age of the object.
		if t.At.After(m.started) {
			m.programming.WithLabelValues(familyName(t.IPv6)).Observe(time.Since(t.At).Seconds())
		}
	}
}

// ObserveFlows returns what records how long stale conntrack entries were looked for
// (redirect.IPTables.ObserveFlows).
func (m *Metrics) ObserveFlows(ipv6 bool) func(time.Duration) {
	h := m.conntrack.WithLabelValues(familyName(ipv6))
	return func(d time.Duration) { h.Observe(d.Seconds()) }
}

// ObserveProbe records the answer to a health probe (status.HealthHandler).
func (m *Metrics) ObserveProbe(path string, code int) {
	c := m.livez
	if path == "/healthz" {
		c = m.healthz
	}
	c.WithLabelValues(strconv.Itoa(code)).Inc()
}

func familyName(ipv6 bool) string {
	if ipv6 {
		return "IPv6"
	}
	return "IPv4"
}
