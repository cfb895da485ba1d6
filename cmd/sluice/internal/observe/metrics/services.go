package metrics

import (
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-lb/sluice/internal/flows/report"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

// Detail says how many of Services and endpoints have series of their own, and which. The zero value: none, so that
// Services are one sum.
type Detail struct {
	Services  int  // ports of Services
	Endpoints int  // endpoints of those
	All       bool // also the series of a Service port that have not counted anything yet
}

// services is the series of each service port. One that has its own keeps them for
// as long as it exists; those that come when there are as many as may be are summed
// under service_name="__other__" with an empty namespace, which no Service has, until
// some of those go. No counter of the sum goes down when one of them goes.
type services struct {
	stats  func() []balancer.Stats
	kernel func() report.Counts
	detail Detail

	mu    sync.Mutex // guards the following; scrapes may overlap
	own   map[serviceKey]shown
	rest  numbers                // the counters of the sum
	other shown                  // series of the sum
	last  map[serviceKey]numbers // of those in the sum, at the last scrape
	endpoints
}

// serviceKey is the values of the labels, whose names are none that Prometheus gives
// to what it scrapes. Both families of a service port are one.
type serviceKey struct{ namespace, service, port, protocol string }

// numbers are the values of serviceSeries.
type numbers [inKernel + 1]uint64

// shown are the series of serviceSeries that are exposed, a bit for each. One that was once stays, since a
// counter that goes away and comes back looks like a restart.
type shown uint64

// serviceSeries are the series of a service port, counters first.
var serviceSeries = slices.Concat([]*prometheus.Desc{
	ofService("picks_total",
		"[BETA] Endpoints chosen for connections and flows; a connection that retries counts each endpoint."),
	ofService("failures_total", "[BETA] Endpoints chosen that refused, did not answer or failed."),
	ofService("bytes_total", serviceBytesIs, "direction", "in"),
	ofService("bytes_total", serviceBytesIs, "direction", "out"),
	ofService("rejected_total", rejectedIs, "reason", "no_endpoint"),
	ofService("rejected_total", rejectedIs, "reason", "no_local_endpoint"),
	ofService("rejected_total", rejectedIs, "reason", "not_allowed"),
	ofService("rejected_total", rejectedIs, "reason", "limited"),
	ofService("over_share_total", "[ALPHA] Connections refused, UDP flows evicted and ports without a socket because "+
		"the Service had its share (--max-service-share)."),
	ofService("evicted_clients_total", evictedAre, "table", "affinity"),
	ofService("evicted_clients_total", evictedAre, "table", "conversations"),
}, resetSeries(), []*prometheus.Desc{
	ofService("kernel_connections_total", "[ALPHA] Connections and flows that the kernel "+
		"has chosen the endpoint of, "+kernelCounts),
	ofService("kernel_bytes_total", kernelBytesAre, "direction", "in"),
	ofService("kernel_bytes_total", kernelBytesAre, "direction", "out"),
	ofService("active", "[ALPHA] Open and dialling connections and flows."),
	ofService("held", "[ALPHA] Clients that wait because no endpoint is ready (sluice.io/hold)."),
	ofService("endpoints", endpointsIs, "state", "live"),
	ofService("endpoints", endpointsIs, "state", "eligible"),
	ofService("endpoints", endpointsIs, "state", "eligible_local"),
	ofService("queued", "[ALPHA] Clients that wait because every endpoint has sluice.io/max-endpoint-connections."),
	ofService("kernel_active",
		"[ALPHA] Open and dialling connections and flows that the kernel forwards, by conntrack. Those on data path "+
			"queue may also be in sluice_service_active."),
})

// What is where in serviceSeries.
const (
	resets     = 11                          // the first that counts those, of lb.End 1
	byKernel   = resets + len(lb.Ends{}) - 1 // the first that counts what the kernel forwards
	counters   = byKernel + 3                // how many are
	activeOnes = shown(1) << counters        // of the rest
	heldOnes   = activeOnes << 1
	states     = counters + 2 // the first that counts endpoints
	inKernel   = states + 4   // what is open there
)

// resetSeries are those of each lb.End that is not as it should be.
func resetSeries() (all []*prometheus.Desc) {
	for e := lb.Normal + 1; int(e) < len(lb.Ends{}); e++ {
		all = append(all, ofService("resets_total", resetsAre, "side", e.Side(), "reason", e.Reason()))
	}
	return all
}

// Which of serviceSeries are exposed from the start: all, or what every Service has. Of a thousand Services on a node
// most are neither limited nor have affinity, and what stays zero would be half of all series. Those of held are there,
// since autoscalers add them to active.
const (
	always shown = 1<<0 | 1<<1 | 1<<2 | 1<<3 | activeOnes | heldOnes | 1<<states | 1<<(states+1)
	every  shown = 1<<len(numbers{}) - 1 - ofKernel

	ofKernel         = kernelSums | 1<<inKernel
	kernelSums shown = 7 << byKernel
)

const (
	rejectedIs = "[BETA] Connections and first datagrams rejected, by reason: no_endpoint, no_local_endpoint (none " +
		"on this node, with policy Local), not_allowed (source ranges) or limited (sluice.io/max-connections and the " +
		"like)."
	resetsAre = "[BETA] TCP connections and SCTP associations that ended by a reset, by the side that reset and the " +
		"reason. docs/troubleshoot.md lists all reasons; the access log has the same."
	evictedAre = "[ALPHA] Clients forgotten because too many were remembered, by table: affinity (sessionAffinity) " +
		"or conversations (UDP clients whose flow was closed early)."
	kernelCounts = "while the Service is on a data path of the kernel: counted by ipvs, or by conntrack with " +
		"--conntrack-accounting."
	kernelBytesAre = "[ALPHA] Bytes that the kernel has forwarded, with the headers of IP: in from clients, out to " +
		"clients; " + kernelCounts
	serviceBytesIs = "[ALPHA] Bytes relayed: in from clients, out to clients. Open connections and flows are counted " +
		"within 10 s."
	endpointsIs = "[ALPHA] Endpoints by state: live (connections to them stay open), eligible (for new connections " +
		"with policy Cluster) and eligible_local (with policy Local)."
)

var serviceLabels = []string{"service_namespace", "service_name", "service_port", "protocol"}

// ofService describes a series of service ports, with constant labels or none.
func ofService(name, help string, label ...string) *prometheus.Desc {
	return prometheus.NewDesc("sluice_service_"+name, help, serviceLabels, constant(label))
}

func newServices(stats func() []balancer.Stats, kernel func() report.Counts, detail Detail) *services {
	return &services{stats: stats, kernel: kernel, detail: detail,
		own: make(map[serviceKey]shown), last: make(map[serviceKey]numbers)}
}

// collect reads the numbers once.
func (s *services) collect(out chan<- prometheus.Metric) {
	s.mu.Lock()
	defer s.mu.Unlock()
	stats := s.stats()
	s.collectServices(out, stats, s.kernel())
	if s.detail.Endpoints > 0 {
		s.endpoints.collect(out, stats, s.detail.Endpoints)
	}
}

func (s *services) collectServices(out chan<- prometheus.Metric, stats []balancer.Stats, kernel report.Counts) {
	now, order := sum(stats)
	forwarded := addKernel(now, kernel)
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
	var gauges numbers
	summed := s.rest != (numbers{})
	for _, key := range order {
		if has, ok := s.own[key]; ok || len(s.own) < s.detail.Services {
			s.own[key] = s.send(out, key, now[key], has&^ofKernel|forwarded[key])
			delete(s.last, key)
			continue
		}
		summed = true
		gauges.add(now[key])
		s.other |= forwarded[key]
		s.grow(key, now[key], forwarded[key]&kernelSums != 0)
	}
	if summed {
		all := gauges
		copy(all[:counters], s.rest[:counters])
		s.other = s.send(out, serviceKey{service: "__other__"}, all, s.other)
	}
}

// grow adds to the sum what a service port has counted since the last scrape.
func (s *services) grow(key serviceKey, now numbers, byKernelToo bool) {
	last := s.last[key]
	if !byKernelToo {
		copy(now[byKernel:counters], last[byKernel:counters]) // it goes on from there
	}
	for i := range counters {
		if now[i] < last[i] { // gone and come again in between
			last[i] = 0
		}
		s.rest[i] += now[i] - last[i]
	}
	s.last[key] = now
}

// send sends the series that were shown before, and those that are to be from now on, which it returns.
func (s *services) send(out chan<- prometheus.Metric, key serviceKey, n numbers, before shown) shown {
	has := before | always
	if s.detail.All {
		has = every
	}
	for i, desc := range serviceSeries {
		if n[i] != 0 {
			has |= 1 << i
		}
		if has&(1<<i) == 0 {
			continue
		}
		kind := prometheus.GaugeValue
		if i < counters {
			kind = prometheus.CounterValue
		}
		out <- prometheus.MustNewConstMetric(desc, kind, float64(n[i]),
			key.namespace, key.service, key.port, key.protocol)
	}
	return has
}

// sum adds up what belongs to the same labels, and keeps the order.
func sum(stats []balancer.Stats) (map[serviceKey]numbers, []serviceKey) {
	all := make(map[serviceKey]numbers, len(stats))
	order := make([]serviceKey, 0, len(stats))
	for i := range stats {
		key := keyOf(&stats[i].ID)
		n, ok := all[key]
		if !ok {
			order = append(order, key)
		}
		n.add(numbersOf(&stats[i]))
		all[key] = n
	}
	return all, order
}

// addKernel adds what is counted of what the kernel forwards, and returns the series that those Services have of it:
// also before there is anything, so that no increase is missed. Others have none: what was counted goes on when they
// are back, and 0 until then would look like a restart.
func addKernel(to map[serviceKey]numbers, kernel report.Counts) map[serviceKey]shown {
	forwarded := make(map[serviceKey]shown, len(kernel))
	for id, of := range kernel {
		key := keyOf(&id)
		n, ok := to[key]
		if !ok {
			continue // it has come since, or gone
		}
		n[inKernel] += of.Open
		forwarded[key] |= 1 << inKernel
		if of.Counted {
			for i, more := range []uint64{of.Total, of.In.Bytes, of.Out.Bytes} {
				n[byKernel+i] += more
			}
			forwarded[key] |= kernelSums
		}
		to[key] = n
	}
	return forwarded
}

func keyOf(id *lb.ID) serviceKey {
	return serviceKey{id.Namespace, id.Name, id.Port, id.Protocol.String()}
}

func numbersOf(s *balancer.Stats) numbers {
	n := numbers{s.Picks, s.Failures, s.BytesIn, s.BytesOut, s.NoBackend, s.NoLocalBackend, s.NotAllowed, s.Limited,
		s.OverShare, s.AffinityEvicted, s.ConversationsEvicted}
	if s.Ends != nil {
		copy(n[resets:], s.Ends[1:])
	}
	copy(n[counters:], []uint64{s.InFlight, s.Held, 0, 0, 0, s.Queued})
	for i := range s.Backends {
		b := &s.Backends[i]
		for at, is := range [...]bool{b.Live, b.Eligible, b.EligibleLocal} {
			if is {
				n[states+at]++
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
