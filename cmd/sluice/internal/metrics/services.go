package metrics

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-lb/sluice/lb"
)

// maxServices is how many service ports have series of their own: with fourteen each, a
// page of some 2 MB.
const maxServices = 1000

// services is the series of each service port. One that has its own keeps them for
// as long as it exists; those that come when there are max already are summed
// under service_name="__other__" with an empty namespace, which no Service has, until
// some of those go. No counter of the sum goes down when one of them goes.
type services struct {
	stats func() []lb.Stats
	max   int

	mu   sync.Mutex // guards the following; scrapes may overlap
	own  map[serviceKey]struct{}
	rest numbers                // the counters of the sum
	last map[serviceKey]numbers // of those in the sum, at the last scrape
}

// serviceKey is the values of the labels, whose names are none that Prometheus gives
// to what it scrapes. Both families of a service port are one.
type serviceKey struct{ namespace, service, port, protocol string }

// numbers are the values of serviceSeries.
type numbers [19]uint64

// serviceSeries are the series of a service port, counters first.
var serviceSeries = [len(numbers{})]*prometheus.Desc{
	ofService("picks_total",
		"Endpoints chosen for connections and flows; a connection that retries counts each endpoint."),
	ofService("failures_total", "Endpoints chosen that refused, did not answer or failed."),
	ofService("rejected_total", rejectedIs, "reason", "no_backend"),
	ofService("rejected_total", rejectedIs, "reason", "no_local_backend"),
	ofService("rejected_total", rejectedIs, "reason", "not_allowed"),
	ofService("rejected_total", rejectedIs, "reason", "limited"),
	ofService("bytes_total", serviceBytesIs, "direction", "in"),
	ofService("bytes_total", serviceBytesIs, "direction", "out"),
	ofService("affinity_evicted_total", "Clients evicted from the sessionAffinity table because it was full."),
	ofService("over_share_total", "Connections refused, and UDP flows evicted, because the Service had its share of "+
		"the file descriptors, the dials or the UDP flows already (--max-service-share)."),
	ofService("conversations_evicted_total", "UDP clients forgotten because too many were remembered."),
	ofService("active", "Open and dialling connections and flows."),
	ofService("held", "Clients that wait since no endpoint is ready (annotation sluice.io/hold)."),
	ofService("queued", "Clients that wait since every endpoint has as many connections as it may (annotation "+
		"sluice.io/max-endpoint-connections)."),
	ofService("affinity_clients", "Clients in the sessionAffinity table."),
	ofService("conversations", "UDP clients remembered whose flow was closed early."),
	ofService("endpoints", endpointsIs, "state", "live"),
	ofService("endpoints", endpointsIs, "state", "eligible"),
	ofService("endpoints", endpointsIs, "state", "eligible_local"),
}

// counters is how many of serviceSeries are.
const counters = 11

const (
	rejectedIs = "Connections and first datagrams rejected: no endpoint (no_backend), none on this node with " +
		"policy Local (no_local_backend), the client is not in the source ranges (not_allowed), or a limit of the " +
		"Service is reached (limited: sluice.io/max-connections and the like)."
	serviceBytesIs = "Bytes relayed: in from clients, out to clients. An open connection may be up to 256 KiB behind."
	endpointsIs    = "Endpoints by state: live (connections to them stay open), eligible (for new connections with " +
		"policy Cluster) and eligible_local (with policy Local)."
)

// ofService describes a series of service ports, with one constant label or none.
func ofService(name, help string, label ...string) *prometheus.Desc {
	variable := []string{"service_namespace", "service_name", "service_port", "protocol"}
	return prometheus.NewDesc("sluice_service_"+name, help, variable, constant(label))
}

func newServices(stats func() []lb.Stats) *services {
	return &services{stats: stats, max: maxServices,
		own: make(map[serviceKey]struct{}), last: make(map[serviceKey]numbers)}
}

// collect reads the numbers once.
func (s *services) collect(out chan<- prometheus.Metric) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, order := sum(s.stats())
	for key := range s.own {
		if _, ok := now[key]; !ok {
			delete(s.own, key)
		}
	}
	for key := range s.last {
		if _, ok := now[key]; !ok {
			delete(s.last, key) // what it had counted stays in the sum
		}
	}
	aggregated := 0
	var gauges numbers
	for _, key := range order {
		if _, ok := s.own[key]; ok || len(s.own) < s.max {
			s.own[key] = struct{}{}
			delete(s.last, key)
			send(out, key, now[key])
			continue
		}
		aggregated++
		gauges.add(now[key])
		s.grow(key, now[key])
	}
	if aggregated > 0 || s.rest != (numbers{}) {
		all := gauges
		copy(all[:counters], s.rest[:counters])
		send(out, serviceKey{service: "__other__"}, all)
	}
	scrape(out).gauge("sluice_service_ports_aggregated",
		`Service ports without series of their own, which are summed under service_name="__other__".`,
		float64(aggregated))
}

// grow adds to the sum what a service port has counted since the last scrape.
func (s *services) grow(key serviceKey, now numbers) {
	last := s.last[key]
	for i := range counters {
		if now[i] < last[i] { // gone and come again in between
			last[i] = 0
		}
		s.rest[i] += now[i] - last[i]
	}
	s.last[key] = now
}

// sum adds up what belongs to the same labels, and keeps the order.
func sum(stats []lb.Stats) (map[serviceKey]numbers, []serviceKey) {
	all := make(map[serviceKey]numbers, len(stats))
	order := make([]serviceKey, 0, len(stats))
	for i := range stats {
		id := &stats[i].ID
		key := serviceKey{id.Namespace, id.Name, id.Port, id.Protocol.String()}
		n, ok := all[key]
		if !ok {
			order = append(order, key)
		}
		n.add(numbersOf(&stats[i]))
		all[key] = n
	}
	return all, order
}

func numbersOf(s *lb.Stats) numbers {
	n := numbers{s.Picks, s.Failures, s.NoBackend, s.NoLocalBackend, s.NotAllowed, s.Limited, s.BytesIn, s.BytesOut,
		s.AffinityEvicted, s.OverShare, s.ConversationsEvicted, s.InFlight, s.Held, s.Queued,
		uint64(s.AffinityEntries), uint64(s.Conversations)}
	for i := range s.Backends {
		b := &s.Backends[i]
		for at, is := range [...]bool{b.Live, b.Eligible, b.EligibleLocal} {
			if is {
				n[len(n)-3+at]++
			}
		}
	}
	return n
}

func (n *numbers) add(other numbers) {
	for i := range n {
		n[i] += other[i]
	}
}

func send(out chan<- prometheus.Metric, key serviceKey, n numbers) {
	for i, desc := range serviceSeries {
		kind := prometheus.GaugeValue
		if i < counters {
			kind = prometheus.CounterValue
		}
		out <- prometheus.MustNewConstMetric(desc, kind, float64(n[i]),
			key.namespace, key.service, key.port, key.protocol)
	}
}
