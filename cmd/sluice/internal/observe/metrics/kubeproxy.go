package metrics

import (
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/control/agent"
	"github.com/sluice-lb/sluice/redirect"
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

// kubeProxy is the series of kube-proxy 1.37, by its names, labels and buckets, so that
// dashboards and alerts go on working. Some count by themselves, others are read.
type kubeProxy struct {
	agent    func() agent.Status
	families []*steering

	sync, full, partial, programming, conntrack *prometheus.HistogramVec
	probes                                      map[string]*prometheus.CounterVec // by path
}

// steering is a family with what its last attempt did.
type steering struct {
	Family
	writes uint64      // there had been at the end of it
	wrote  atomic.Bool // rules
}

// newKubeProxy returns the series, which are in the registry.
func newKubeProxy(r *prometheus.Registry, status func() agent.Status, families []Family) *kubeProxy {
	histogram := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		opts := prometheus.HistogramOpts{Name: "kubeproxy_" + name, Help: help, Buckets: buckets}
		return promauto.With(r).NewHistogramVec(opts, []string{"ip_family"})
	}
	k := &kubeProxy{
		agent: status,
		sync:  histogram("sync_proxy_rules_duration_seconds", "[ALPHA] Time to apply a change.", syncBuckets),
		full: histogram("sync_full_proxy_rules_duration_seconds",
			"[ALPHA] Time to apply a change that needed rules to be written.", syncBuckets),
		partial: histogram("sync_partial_proxy_rules_duration_seconds",
			"[ALPHA] Time to apply a change that needed at most set members to be written.", syncBuckets),
		programming: histogram("network_programming_duration_seconds",
			"[ALPHA] Time from the change of an endpoint, by the annotation of its EndpointSlice, until it was "+
				"applied here.", programmingBuckets),
		conntrack: histogram("conntrack_reconciler_sync_duration_seconds",
			"[ALPHA] Time to find and delete stale conntrack entries after a change.", syncBuckets),
		probes: make(map[string]*prometheus.CounterVec),
	}
	for _, probe := range []string{"healthz", "livez"} {
		c := promauto.With(r).NewCounterVec(prometheus.CounterOpts{Name: "kubeproxy_proxy_" + probe + "_total",
			Help: "[ALPHA] Answers to /" + probe + ", by HTTP status."}, []string{"code"})
		c.WithLabelValues("200")
		c.WithLabelValues("503")
		k.probes["/"+probe] = c
	}
	for _, f := range families {
		k.families = append(k.families, &steering{Family: f})
		has := []*prometheus.HistogramVec{k.sync, k.programming}
		if f.Stats != nil {
			has = append(has, k.full, k.partial, k.conntrack)
		}
		for _, h := range has {
			h.WithLabelValues(f.Name)
		}
	}
	r.MustRegister(prometheus.CollectorFunc(k.collect))
	return k
}

// collect reads what is read.
func (k *kubeProxy) collect(out chan<- prometheus.Metric) {
	s, status := scrape(out), k.agent()
	for _, f := range k.families {
		family := []string{"ip_family", f.Name}
		local := status.NoLocal[0]
		if f.Name == familyName(true) {
			local = status.NoLocal[1]
		}
		for policy, n := range map[string]int{"internal": local.Internal, "external": local.External} {
			s.gauge("kubeproxy_sync_proxy_rules_no_local_endpoints_total",
				"[ALPHA] Service ports with traffic policy Local and endpoints on other nodes only.",
				float64(n), "traffic_policy", policy, "ip_family", f.Name)
		}
		s.gauge("kubeproxy_sync_proxy_rules_last_timestamp_seconds", "[ALPHA] Time of the last applied change.",
			seconds(status.LastApplied), family...)
		s.gauge("kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds", "[ALPHA] Time of the last change seen.",
			seconds(status.LastQueued), family...)
		if f.Stats == nil {
			continue
		}
		stats := f.Stats()
		s.counter("kubeproxy_conntrack_reconciler_deleted_entries_total",
			"[ALPHA] Stale conntrack entries deleted.", f.Stale(), family...)
		s.nftables(&f.Family, &stats)
		if f.NFTables {
			continue
		}
		s.counter("kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
			"[ALPHA] Runs of iptables-restore that failed.", stats.Failures, family...)
		for table, rules := range stats.Rules {
			last := 0
			if f.wrote.Load() {
				last = rules
			}
			s.gauge("kubeproxy_sync_proxy_rules_iptables_total", "[ALPHA] iptables rules of Sluice.",
				float64(rules), "table", table, "ip_family", f.Name)
			s.gauge("kubeproxy_sync_proxy_rules_iptables_last", "[ALPHA] iptables rules written by the last sync.",
				float64(last), "table", table, "ip_family", f.Name)
		}
	}
}

// nftables is what failed of what steers a family by nftables, and of what forwards its Services by it.
func (s scrape) nftables(f *Family, steering *redirect.Stats) {
	failures, has := uint64(0), f.NFTables
	if f.NFTables {
		failures = steering.Failures
	}
	if f.Engine != nil {
		if engine, there := f.Engine(); there {
			has = true
			failures += engine.Failures
		}
	}
	if has {
		s.counter("kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
			"[ALPHA] Transactions of nftables that failed.", failures, "ip_family", f.Name)
	}
}

// ObserveAttempt records an attempt to apply a change (agent.Config.Observe). It is called
// by one goroutine.
func (m *Metrics) ObserveAttempt(a agent.Attempt) {
	for _, f := range m.families {
		m.sync.WithLabelValues(f.Name).Observe(a.Took.Seconds())
		if f.Stats == nil {
			continue
		}
		writes := f.Stats().Writes
		h := m.partial
		if writes != f.writes {
			h = m.full
		}
		f.wrote.Store(writes != f.writes)
		f.writes = writes
		h.WithLabelValues(f.Name).Observe(a.Took.Seconds())
	}
	for _, t := range a.Changes.Triggers {
		// Older triggers would measure the age of the object.
		if t.At.After(m.started) {
			m.programming.WithLabelValues(familyName(t.IPv6)).Observe(time.Since(t.At).Seconds())
		}
	}
}

// ObserveStale records how long stale conntrack entries were looked for (flows.Stale).
func (m *Metrics) ObserveStale(ipv6 bool, d time.Duration) {
	m.conntrack.WithLabelValues(familyName(ipv6)).Observe(d.Seconds())
}

// ObserveProbe records the answer to a health probe (status.HealthHandler).
func (m *Metrics) ObserveProbe(path string, code int) {
	m.probes[path].WithLabelValues(strconv.Itoa(code)).Inc()
}

func familyName(ipv6 bool) string {
	if ipv6 {
		return "IPv6"
	}
	return "IPv4"
}
