package metrics

import (
	"net/netip"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-lb/sluice/lb"
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

// endpointNumbers are the values of endpointSeries.
type endpointNumbers [7]uint64

// endpointSeries are the series of an endpoint, counters first.
var endpointSeries = [len(endpointNumbers{})]*prometheus.Desc{
	ofEndpoint("picks_total", "Times that the endpoint was chosen for a connection or flow."),
	ofEndpoint("failures_total", "Times that the endpoint was chosen and refused, did not answer or failed."),
	ofEndpoint("bytes_total", serviceBytesIs, "direction", "in"),
	ofEndpoint("bytes_total", serviceBytesIs, "direction", "out"),
	ofEndpoint("active", "Open and dialling connections and flows."),
	ofEndpoint("eligible", "1 while the endpoint gets new connections with policy Cluster."),
	ofEndpoint("ejected", "1 while the endpoint gets no new connections because it failed."),
}

// endpointCounters is how many of endpointSeries are.
const endpointCounters = 4

func ofEndpoint(name, help string, label ...string) *prometheus.Desc {
	return prometheus.NewDesc("sluice_endpoint_"+name, help, slices.Concat(serviceLabels, []string{"endpoint"}),
		constant(label))
}

// collect sends the series of at most that many endpoints.
func (e *endpoints) collect(out chan<- prometheus.Metric, stats []lb.Stats, most int) {
	there, kept := 0, make(map[endpointKey]struct{}, len(e.own))
	each(stats, func(key endpointKey, _ *lb.BackendStats) {
		there++
		if _, ok := e.own[key]; ok {
			kept[key] = struct{}{}
		}
	})
	e.own = kept
	each(stats, func(key endpointKey, b *lb.BackendStats) {
		if _, ok := e.own[key]; ok || len(e.own) < most {
			e.own[key] = struct{}{}
			sendEndpoint(out, key, b)
		}
	})
	scrape(out).gauge("sluice_endpoints_without_series",
		"Endpoints without their own series, because --metrics-endpoints is reached; counted once per Service "+
			"port.", float64(there-len(e.own)))
}

// each calls visit with every endpoint.
func each(stats []lb.Stats, visit func(endpointKey, *lb.BackendStats)) {
	for i := range stats {
		key := endpointKey{serviceKey: keyOf(&stats[i].ID)}
		for j := range stats[i].Backends {
			b := &stats[i].Backends[j]
			key.addr = b.Addr
			visit(key, b)
		}
	}
}

func sendEndpoint(out chan<- prometheus.Metric, key endpointKey, b *lb.BackendStats) {
	n := endpointNumbers{b.Picks, b.Failures, b.BytesIn, b.BytesOut, b.InFlight}
	for at, is := range [...]bool{b.Eligible, b.Health.Ejected} {
		if is {
			n[endpointCounters+1+at] = 1
		}
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
