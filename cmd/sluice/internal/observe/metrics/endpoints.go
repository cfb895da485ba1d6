package metrics

import (
	"net/netip"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-lb/sluice/lb/balancer"
)

// endpoints is the series of each endpoint of a service port. One that has some keeps them for as long as it is in the
// statistics, also after it has left its Service with connections that are still open. Those that come when there are
// as many as may be have none: what they count is in the series of their Service.
type endpoints struct{ own map[endpointKey]struct{} }

// endpointKey is the values of the labels.
type endpointKey struct {
	serviceKey
	addr netip.AddrPort
}

// endpointSeries are the series of an endpoint, counters first.
var endpointSeries = [...]*prometheus.Desc{
	ofEndpoint("picks_total", "[ALPHA] Times that the endpoint was chosen for a connection or flow."),
	ofEndpoint("failures_total", "[ALPHA] Times that the endpoint was chosen and refused, did not answer or failed."),
	ofEndpoint("ejected", "[ALPHA] 1 while the endpoint gets no new connections because it failed."),
}

// endpointCounters is how many of endpointSeries are.
const endpointCounters = 2

func ofEndpoint(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("sluice_endpoint_"+name, help, slices.Concat(serviceLabels, []string{"endpoint"}), nil)
}

// collect sends the series of at most that many endpoints.
func (e *endpoints) collect(out chan<- prometheus.Metric, stats []balancer.Stats, most int) {
	kept := make(map[endpointKey]struct{}, len(e.own))
	each(stats, func(key endpointKey, _ *balancer.BackendStats) {
		if _, ok := e.own[key]; ok {
			kept[key] = struct{}{}
		}
	})
	e.own = kept
	each(stats, func(key endpointKey, b *balancer.BackendStats) {
		if _, ok := e.own[key]; ok || len(e.own) < most {
			e.own[key] = struct{}{}
			sendEndpoint(out, key, b)
		}
	})
}

// each calls visit with every endpoint.
func each(stats []balancer.Stats, visit func(endpointKey, *balancer.BackendStats)) {
	for i := range stats {
		key := endpointKey{serviceKey: keyOf(&stats[i].ID)}
		for j := range stats[i].Backends {
			b := &stats[i].Backends[j]
			key.addr = b.Addr
			visit(key, b)
		}
	}
}

func sendEndpoint(out chan<- prometheus.Metric, key endpointKey, b *balancer.BackendStats) {
	n := [len(endpointSeries)]uint64{b.Picks, b.Failures}
	if b.Health.Ejected {
		n[endpointCounters] = 1
	}
	for i, desc := range endpointSeries {
		kind := prometheus.GaugeValue
		if i < endpointCounters {
			kind = prometheus.CounterValue
		}
		out <- prometheus.MustNewConstMetric(desc, kind, float64(n[i]), key.namespace, key.service, key.port,
			key.protocol, key.addr.String())
	}
}
