package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/agent"
	"github.com/sluice-lb/sluice/tcp"
	"github.com/sluice-lb/sluice/udp"
)

type tcpValues = []value[tcp.Stats]

var tcpMetrics = []metric[tcp.Stats]{
	gauge("sluice_tcp_active_connections", "Open TCP connections.",
		one(func(s *tcp.Stats) float64 { return float64(s.Active) })),
	gauge("sluice_tcp_dialling_connections", "TCP connections waiting for an endpoint to answer the dial.",
		one(func(s *tcp.Stats) float64 { return float64(s.Dialling) })),
	counter("sluice_tcp_accepted_connections_total", "TCP connections accepted.",
		one(func(s *tcp.Stats) float64 { return float64(s.Accepted) })),
	counter("sluice_tcp_connections_total",
		"TCP connections accepted, by result: established, or reset for no_service, no_backend, "+
			"no_local_backend (policy Local), not_allowed (source ranges) or dial_failed.",
		by("result", tcpValues{
			{"established", func(s *tcp.Stats) float64 { return float64(s.Established) }},
			{"no_service", func(s *tcp.Stats) float64 { return float64(s.NoService) }},
			{"no_backend", func(s *tcp.Stats) float64 { return float64(s.NoBackend) }},
			{"no_local_backend", func(s *tcp.Stats) float64 { return float64(s.NoLocal) }},
			{"not_allowed", func(s *tcp.Stats) float64 { return float64(s.NotAllowed) }},
			{"dial_failed", func(s *tcp.Stats) float64 { return float64(s.DialGaveUp) }},
		})),
	counter("sluice_tcp_dial_attempts_total", "Dials to TCP endpoints.",
		one(func(s *tcp.Stats) float64 { return float64(s.Dials) })),
	counter("sluice_tcp_dials_total",
		"Finished dials to TCP endpoints, by result: established, refused or timeout.",
		by("result", tcpValues{
			{"established", func(s *tcp.Stats) float64 { return float64(s.Established) }},
			{"refused", func(s *tcp.Stats) float64 { return float64(s.DialRefused) }},
			{"timeout", func(s *tcp.Stats) float64 { return float64(s.DialTimedOut) }},
		})),
	counter("sluice_tcp_dials_deferred_total",
		"TCP dials deferred because file descriptors, local ports or memory of this node were exhausted.",
		one(func(s *tcp.Stats) float64 { return float64(s.Shortages) })),
	counter("sluice_tcp_resets_total",
		"Relayed TCP connections reset, by the side that failed.",
		by("side", tcpValues{
			{"client", func(s *tcp.Stats) float64 { return float64(s.ClientResets) }},
			{"backend", func(s *tcp.Stats) float64 { return float64(s.BackendResets) }},
		})),
	counter("sluice_tcp_bytes_total",
		"Bytes relayed over TCP: in from clients, out to clients.",
		by("direction", tcpValues{
			{"in", func(s *tcp.Stats) float64 { return float64(s.BytesIn) }},
			{"out", func(s *tcp.Stats) float64 { return float64(s.BytesOut) }},
		})),
	counter("sluice_tcp_accept_pauses_total",
		"Pauses of accepting, by the exhausted resource: file_descriptors, dials (too many in flight) or "+
			"other.",
		by("resource", tcpValues{
			{"file_descriptors", func(s *tcp.Stats) float64 { return float64(s.PausedDescriptors) }},
			{"dials", func(s *tcp.Stats) float64 { return float64(s.PausedDials) }},
			{"other", func(s *tcp.Stats) float64 { return float64(s.AcceptErrors) }},
		})),
}

type udpValues = []value[udp.Stats]

var udpMetrics = []metric[udp.Stats]{
	gauge("sluice_udp_active_flows", "Open UDP flows.",
		one(func(s *udp.Stats) float64 { return float64(s.Active) })),
	counter("sluice_udp_flows_total", "UDP flows opened.",
		one(func(s *udp.Stats) float64 { return float64(s.Created) })),
	counter("sluice_udp_flows_ended_total",
		"UDP flows closed, by reason: expired (idle) or evicted (to make room).",
		by("reason", udpValues{
			{"expired", func(s *udp.Stats) float64 { return float64(s.Expired) }},
			{"evicted", func(s *udp.Stats) float64 { return float64(s.Evicted) }},
		})),
	counter("sluice_udp_flows_rerouted_total",
		"UDP flows moved away from an endpoint, by reason: gone (removed from the Service) or refused "+
			"(ICMP port or host unreachable).",
		by("reason", udpValues{
			{"gone", func(s *udp.Stats) float64 { return float64(s.Moved) }},
			{"refused", func(s *udp.Stats) float64 { return float64(s.Refused) }},
		})),
	counter("sluice_udp_datagrams_total",
		"Datagrams relayed: in from clients, out to clients.",
		by("direction", udpValues{
			{"in", func(s *udp.Stats) float64 { return float64(s.DatagramsIn) }},
			{"out", func(s *udp.Stats) float64 { return float64(s.DatagramsOut) }},
		})),
	counter("sluice_udp_bytes_total",
		"Bytes relayed over UDP: in from clients, out to clients.",
		by("direction", udpValues{
			{"in", func(s *udp.Stats) float64 { return float64(s.BytesIn) }},
			{"out", func(s *udp.Stats) float64 { return float64(s.BytesOut) }},
		})),
	counter("sluice_udp_retransmitted_datagrams_total",
		"Datagrams sent again to another endpoint after one refused them.",
		one(func(s *udp.Stats) float64 { return float64(s.Resent) })),
	counter("sluice_udp_dropped_datagrams_total", "Datagrams dropped, by reason.", by("reason", udpValues{
		{"no_service", func(s *udp.Stats) float64 { return float64(s.NoService) }},
		{"no_backend", func(s *udp.Stats) float64 { return float64(s.NoBackend) }},
		{"no_local_backend", func(s *udp.Stats) float64 { return float64(s.NoLocal) }},
		{"not_allowed", func(s *udp.Stats) float64 { return float64(s.NotAllowed) }},
		{"no_file_descriptor", func(s *udp.Stats) float64 { return float64(s.NoDescriptor) }},
		{"unreachable", func(s *udp.Stats) float64 { return float64(s.Unreachable) }},
		{"draining", func(s *udp.Stats) float64 { return float64(s.Draining) }},
		{"malformed", func(s *udp.Stats) float64 { return float64(s.Malformed) }},
		{"busy", func(s *udp.Stats) float64 { return float64(s.Busy) }},
		{"too_long", func(s *udp.Stats) float64 { return float64(s.TooLong) }},
	})),
	counter("sluice_udp_errors_total", "System calls on UDP sockets that failed, by call.", by("call", udpValues{
		{"send", func(s *udp.Stats) float64 { return float64(s.SendErrors) }},
		{"receive", func(s *udp.Stats) float64 { return float64(s.ReceiveErrors) }},
	})),
}

type agentValues = []value[agent.Status]

var agentMetrics = []metric[agent.Status]{
	gauge("sluice_services", "Service ports applied.",
		one(func(s *agent.Status) float64 { return float64(s.Services) })),
	gauge("sluice_frontends", "Service addresses and ports applied.",
		one(func(s *agent.Status) float64 { return float64(s.Frontends) })),
	gauge("sluice_node_port_conflicts", "Node ports that another process on this node has bound.",
		one(func(s *agent.Status) float64 { return float64(s.Conflicts) })),
	gauge("sluice_backends", "Endpoints applied, counted once per Service port.",
		one(func(s *agent.Status) float64 { return float64(s.Backends) })),
	gauge("sluice_service_data_path",
		"Service ports, by the data path in effect: userspace, iptables or ipvs.",
		by("path", agentValues{
			{"userspace", func(s *agent.Status) float64 { return float64(s.Paths[agent.Userspace]) }},
			{"iptables", func(s *agent.Status) float64 { return float64(s.Paths[agent.IPTables]) }},
			{"ipvs", func(s *agent.Status) float64 { return float64(s.Paths[agent.IPVS]) }},
		})),
	gauge("sluice_data_path_fallbacks",
		"Service ports whose requested data path is unavailable, so that another one serves them.",
		one(func(s *agent.Status) float64 { return float64(s.Fallbacks) })),
	counter("sluice_syncs_total", "Syncs of the data path with a change, by result.", by("result", agentValues{
		{"ok", func(s *agent.Status) float64 { return float64(s.Applied) }},
		{"error", func(s *agent.Status) float64 { return float64(s.Failures) }},
	})),
	counter("sluice_rules_repaired_total", "Repairs of rules that were missing or changed in the kernel.",
		one(func(s *agent.Status) float64 { return float64(s.Repairs) })),
	counter("sluice_rule_syncs_deferred_total",
		"Rule syncs deferred by --iptables-min-sync-period or --ipvs-min-sync-period.",
		one(func(s *agent.Status) float64 { return float64(s.Deferred) })),
	gauge("kubeproxy_sync_proxy_rules_service_changes_pending", "Service changes not applied yet.",
		one(func(s *agent.Status) float64 { return float64(s.ServicesPending) })),
	counter("kubeproxy_sync_proxy_rules_service_changes_total", "Service changes seen.",
		one(func(s *agent.Status) float64 { return float64(s.ServiceChanges) })),
	gauge("kubeproxy_sync_proxy_rules_endpoint_changes_pending",
		"EndpointSlice and Endpoints changes not applied yet.",
		one(func(s *agent.Status) float64 { return float64(s.EndpointsPending) })),
	counter("kubeproxy_sync_proxy_rules_endpoint_changes_total", "EndpointSlice and Endpoints changes seen.",
		one(func(s *agent.Status) float64 { return float64(s.EndpointChanges) })),
}

func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}

var (
	used = single(prometheus.GaugeValue, "sluice_file_descriptors_used",
		"File descriptors held by connections and flows.")
	limit = single(prometheus.GaugeValue, "sluice_file_descriptors_limit",
		"File descriptors that connections and flows may hold; 0 for no limit.")
	denied = single(prometheus.CounterValue, "sluice_file_descriptors_exhausted_total",
		"Connections, flows and pipes that found all file descriptors in use.")
	reported = single(prometheus.CounterValue, "sluice_events_total",
		"Events reported on the Node and on Services.")
	eventsDropped = single(prometheus.CounterValue, "sluice_events_dropped_total",
		"Events dropped because of the rate limit.")

	files   = single(prometheus.GaugeValue, "sluice_manifest_files", "Manifest files found.")
	objects = single(prometheus.GaugeValue, "sluice_manifest_objects", "Objects of manifests applied.")

	problems = prometheus.NewDesc("sluice_manifest_problems",
		"Problems of manifest files whose last valid version is kept, by reason: "+
			"unreadable, syntax, invalid, conflict or limit. The log has each with its line.",
		[]string{"file", "reason"}, nil)
)
