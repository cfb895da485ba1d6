package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/agent"
	"github.com/sluice-lb/sluice/tcp"
	"github.com/sluice-lb/sluice/udp"
)

const (
	connections   = "sluice_tcp_connections_total"
	connectionsIs = "TCP connections accepted, by what became of them: established, or reset for no_service, no_backend, no_local_backend (policy Local), not_allowed (source ranges) or dial_failed."
	dials         = "sluice_tcp_dials_total"
	dialsIs       = "Attempts to reach a TCP backend that have ended, by result: established, refused or timeout."
	resets        = "sluice_tcp_resets_total"
	resetsIs      = "TCP relays ended by an error, by the side that it came from."
	bytes         = "sluice_tcp_bytes_total"
	bytesIs       = "Bytes relayed over TCP: in from clients, out to clients."
	pauses        = "sluice_tcp_accept_pauses_total"
	pausesIs      = "How often accepting paused, by what was short: descriptors, dials (too many in flight) or other."

	flowsEnded      = "sluice_udp_flows_ended_total"
	flowsEndedIs    = "UDP flows closed, by reason: expired (idle) or evicted (to make room)."
	flowsMoved      = "sluice_udp_backends_left_total"
	flowsMovedIs    = "How often UDP flows left a backend, by reason: gone (from the table) or refused (also unreachable)."
	datagrams       = "sluice_udp_datagrams_total"
	datagramsIs     = "Datagrams relayed: in from clients, out to clients."
	datagramBytes   = "sluice_udp_bytes_total"
	datagramBytesIs = "Bytes relayed over UDP: in from clients, out to clients."
	dropped         = "sluice_udp_dropped_datagrams_total"
	droppedIs       = "Datagrams dropped, by reason."
	dataPath        = "sluice_service_data_path"
	dataPathIs      = "Service ports in force, by who forwards them: userspace, iptables or ipvs."
	udpErrors       = "sluice_udp_errors_total"
	udpErrorsIs     = "System calls on UDP sockets that failed, by call."
)

var tcpSeries = []reading[tcp.Stats]{
	{gauge("sluice_tcp_active_connections", "TCP connections open now."), func(s *tcp.Stats) float64 { return float64(s.Active) }},
	{gauge("sluice_tcp_dialling_connections", "TCP connections whose backend has not answered yet."), func(s *tcp.Stats) float64 { return float64(s.Dialling) }},
	{counter("sluice_tcp_accepted_connections_total", "TCP connections accepted."), func(s *tcp.Stats) float64 { return float64(s.Accepted) }},
	{counter(connections, connectionsIs, "result", "established"), func(s *tcp.Stats) float64 { return float64(s.Established) }},
	{counter(connections, connectionsIs, "result", "no_service"), func(s *tcp.Stats) float64 { return float64(s.NoService) }},
	{counter(connections, connectionsIs, "result", "no_backend"), func(s *tcp.Stats) float64 { return float64(s.NoBackend) }},
	{counter(connections, connectionsIs, "result", "no_local_backend"), func(s *tcp.Stats) float64 { return float64(s.NoLocal) }},
	{counter(connections, connectionsIs, "result", "not_allowed"), func(s *tcp.Stats) float64 { return float64(s.NotAllowed) }},
	{counter(connections, connectionsIs, "result", "dial_failed"), func(s *tcp.Stats) float64 { return float64(s.DialGaveUp) }},
	{counter("sluice_tcp_dial_attempts_total", "Attempts to reach a TCP backend."), func(s *tcp.Stats) float64 { return float64(s.Dials) }},
	{counter(dials, dialsIs, "result", "established"), func(s *tcp.Stats) float64 { return float64(s.Established) }},
	{counter(dials, dialsIs, "result", "refused"), func(s *tcp.Stats) float64 { return float64(s.DialRefused) }},
	{counter(dials, dialsIs, "result", "timeout"), func(s *tcp.Stats) float64 { return float64(s.DialTimedOut) }},
	{counter("sluice_tcp_dial_shortages_total", "How often a dial waited for descriptors, ports or memory of this host."), func(s *tcp.Stats) float64 { return float64(s.Shortages) }},
	{counter(resets, resetsIs, "side", "client"), func(s *tcp.Stats) float64 { return float64(s.ClientResets) }},
	{counter(resets, resetsIs, "side", "backend"), func(s *tcp.Stats) float64 { return float64(s.BackendResets) }},
	{counter(bytes, bytesIs, "direction", "in"), func(s *tcp.Stats) float64 { return float64(s.BytesIn) }},
	{counter(bytes, bytesIs, "direction", "out"), func(s *tcp.Stats) float64 { return float64(s.BytesOut) }},
	{counter(pauses, pausesIs, "short", "descriptors"), func(s *tcp.Stats) float64 { return float64(s.PausedDescriptors) }},
	{counter(pauses, pausesIs, "short", "dials"), func(s *tcp.Stats) float64 { return float64(s.PausedDials) }},
	{counter(pauses, pausesIs, "short", "other"), func(s *tcp.Stats) float64 { return float64(s.AcceptErrors) }},
}

var udpSeries = []reading[udp.Stats]{
	{gauge("sluice_udp_active_flows", "UDP flows open now."), func(s *udp.Stats) float64 { return float64(s.Active) }},
	{counter("sluice_udp_flows_total", "UDP flows that got a backend."), func(s *udp.Stats) float64 { return float64(s.Created) }},
	{counter(flowsEnded, flowsEndedIs, "reason", "expired"), func(s *udp.Stats) float64 { return float64(s.Expired) }},
	{counter(flowsEnded, flowsEndedIs, "reason", "evicted"), func(s *udp.Stats) float64 { return float64(s.Evicted) }},
	{counter(flowsMoved, flowsMovedIs, "reason", "gone"), func(s *udp.Stats) float64 { return float64(s.Moved) }},
	{counter(flowsMoved, flowsMovedIs, "reason", "refused"), func(s *udp.Stats) float64 { return float64(s.Refused) }},
	{counter(datagrams, datagramsIs, "direction", "in"), func(s *udp.Stats) float64 { return float64(s.DatagramsIn) }},
	{counter(datagrams, datagramsIs, "direction", "out"), func(s *udp.Stats) float64 { return float64(s.DatagramsOut) }},
	{counter(datagramBytes, datagramBytesIs, "direction", "in"), func(s *udp.Stats) float64 { return float64(s.BytesIn) }},
	{counter(datagramBytes, datagramBytesIs, "direction", "out"), func(s *udp.Stats) float64 { return float64(s.BytesOut) }},
	{counter("sluice_udp_resent_datagrams_total", "Datagrams sent again after a backend had refused them."), func(s *udp.Stats) float64 { return float64(s.Resent) }},
	{counter(dropped, droppedIs, "reason", "no_service"), func(s *udp.Stats) float64 { return float64(s.NoService) }},
	{counter(dropped, droppedIs, "reason", "no_backend"), func(s *udp.Stats) float64 { return float64(s.NoBackend) }},
	{counter(dropped, droppedIs, "reason", "no_local_backend"), func(s *udp.Stats) float64 { return float64(s.NoLocal) }},
	{counter(dropped, droppedIs, "reason", "not_allowed"), func(s *udp.Stats) float64 { return float64(s.NotAllowed) }},
	{counter(dropped, droppedIs, "reason", "no_descriptor"), func(s *udp.Stats) float64 { return float64(s.NoDescriptor) }},
	{counter(dropped, droppedIs, "reason", "unreachable"), func(s *udp.Stats) float64 { return float64(s.Unreachable) }},
	{counter(dropped, droppedIs, "reason", "draining"), func(s *udp.Stats) float64 { return float64(s.Draining) }},
	{counter(dropped, droppedIs, "reason", "malformed"), func(s *udp.Stats) float64 { return float64(s.Malformed) }},
	{counter(dropped, droppedIs, "reason", "busy"), func(s *udp.Stats) float64 { return float64(s.Busy) }},
	{counter(dropped, droppedIs, "reason", "too_long"), func(s *udp.Stats) float64 { return float64(s.TooLong) }},
	{counter(udpErrors, udpErrorsIs, "call", "send"), func(s *udp.Stats) float64 { return float64(s.SendErrors) }},
	{counter(udpErrors, udpErrorsIs, "call", "receive"), func(s *udp.Stats) float64 { return float64(s.ReceiveErrors) }},
}

var agentSeries = []reading[agent.Status]{
	{gauge("sluice_services", "Service ports in force."), func(s *agent.Status) float64 { return float64(s.Services) }},
	{gauge("sluice_frontends", "Addresses of Services in force."), func(s *agent.Status) float64 { return float64(s.Frontends) }},
	{gauge("sluice_node_port_conflicts", "Node ports that cannot be held because somebody else has them."), func(s *agent.Status) float64 { return float64(s.Conflicts) }},
	{gauge("sluice_backends", "Endpoints in force, counted once for each Service port."), func(s *agent.Status) float64 { return float64(s.Backends) }},
	{gauge(dataPath, dataPathIs, "path", "userspace"), func(s *agent.Status) float64 { return float64(s.Paths[agent.Userspace]) }},
	{gauge(dataPath, dataPathIs, "path", "iptables"), func(s *agent.Status) float64 { return float64(s.Paths[agent.IPTables]) }},
	{gauge(dataPath, dataPathIs, "path", "ipvs"), func(s *agent.Status) float64 { return float64(s.Paths[agent.IPVS]) }},
	{gauge("sluice_service_data_path_unmet", "Service ports that are not on the data path that they, or the mode, wish."), func(s *agent.Status) float64 { return float64(s.Unmet) }},
	{counter("sluice_syncs_total", "Attempts to bring a change into force, by result.", "result", "ok"), func(s *agent.Status) float64 { return float64(s.Applied) }},
	{counter("sluice_syncs_total", "Attempts to bring a change into force, by result.", "result", "error"), func(s *agent.Status) float64 { return float64(s.Failures) }},
	{counter("sluice_rules_repaired_total", "How often rules were found missing and written again."), func(s *agent.Status) float64 { return float64(s.Repairs) }},
	{counter("sluice_rules_put_off_total", "How often a change had to wait, since rules had just been written (--iptables-min-sync-period, --ipvs-min-sync-period)."), func(s *agent.Status) float64 { return float64(s.PutOff) }},
	{gauge("kubeproxy_sync_proxy_rules_service_changes_pending", "Changes of Services that are not in force yet."), func(s *agent.Status) float64 { return float64(s.ServicesPending) }},
	{counter("kubeproxy_sync_proxy_rules_service_changes_total", "Changes of Services seen."), func(s *agent.Status) float64 { return float64(s.ServiceChanges) }},
	{gauge("kubeproxy_sync_proxy_rules_endpoint_changes_pending", "Changes of EndpointSlices and Endpoints that are not in force yet."), func(s *agent.Status) float64 { return float64(s.EndpointsPending) }},
	{counter("kubeproxy_sync_proxy_rules_endpoint_changes_total", "Changes of EndpointSlices and Endpoints seen."), func(s *agent.Status) float64 { return float64(s.EndpointChanges) }},
}

func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}

var (
	used          = gauge("sluice_descriptors_used", "Descriptors that connections and flows hold.")
	limit         = gauge("sluice_descriptors_limit", "Descriptors that connections and flows may hold; 0 for no limit.")
	denied        = counter("sluice_descriptors_denied_total", "How often a connection, flow or pipe found no descriptor left.")
	reported      = counter("sluice_events_total", "Events of the node and of Services reported.")
	eventsDropped = counter("sluice_events_dropped_total", "Events not reported because there were too many.")

	files   = gauge("sluice_manifest_files", "Manifest files found.")
	objects = gauge("sluice_manifest_objects", "Objects of manifests in force.")

	// problem has a label value for each thing that is wrong now; the loader bounds them.
	problem = prometheus.NewDesc("sluice_manifest_problem", "1 for each problem that keeps the content of a manifest from being in force.",
		[]string{"file", "line", "reason"}, nil)
)
