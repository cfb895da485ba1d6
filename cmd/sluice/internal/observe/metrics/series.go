package metrics

import (
	"github.com/sluice-lb/sluice/cmd/sluice/internal/control/agent"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/control/checks"
	"github.com/sluice-lb/sluice/internal/session"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
	"github.com/sluice-lb/sluice/sctp"
	"github.com/sluice-lb/sluice/tcp"
	"github.com/sluice-lb/sluice/udp"
)

// Values of the label protocol, as Kubernetes spells them.
var protocolTCP, protocolUDP, protocolSCTP = lb.TCP.String(), lb.UDP.String(), lb.SCTP.String()

// dialed sends the series of a protocol that accepts and dials.
func (s scrape) dialed(protocol string, n session.Stats[uint64, int64]) {
	of := []string{"protocol", protocol}
	s.active(protocol, n.Active)
	s.gauge("sluice_dialling_connections", "[ALPHA] Connections that wait for an endpoint to answer the dial.",
		float64(n.Dialling), of...)
	s.connections(protocol, []reading{
		{"established", n.Established},
		{"no_service", n.NoService},
		{"no_endpoint", n.NoBackend},
		{"no_local_endpoint", n.NoLocal},
		{"not_allowed", n.NotAllowed},
		{"dial_failed", n.DialGaveUp},
		{"no_local_ports", n.NoPorts},
		{"dial_evicted", n.DialEvicted},
		{"left_while_held", n.HoldLeft},
		{"queue_full", n.QueueFull},
		{"queue_timeout", n.QueueTimedOut},
		{"left_while_queued", n.QueueLeft},
	})
	s.counters("sluice_dials_total", "[ALPHA] Finished dials to endpoints, by result: established, refused or timeout.",
		"result", []reading{{"established", n.Established}, {"refused", n.DialRefused}, {"timeout", n.DialTimedOut}},
		of...)
	s.waits(protocol, "hold", []reading{{"began", n.Holds}, {"timeout", n.HoldExpired}, {"left", n.HoldLeft},
		{"full", n.HoldFull}})
	s.waits(protocol, "queue", []reading{{"began", n.Queues}, {"timeout", n.QueueTimedOut}, {"left", n.QueueLeft},
		{"full", n.QueueFull}})
	s.counters("sluice_limited_connections_total", "[ALPHA] Connections reset by a limit of their Service, by limit: "+
		"max_connections, max_client_connections or max_client_connection_rate.", "limit", []reading{
		{"max_connections", n.OverConnections},
		{"max_client_connections", n.OverClientConnections},
		{"max_client_connection_rate", n.OverClientRate},
	}, of...)
	s.counters("sluice_refused_connections_total", "[BETA] Connections reset because their Service or client had its "+
		"share of file descriptors or dials (--max-service-share, --max-client-share).", "share", []reading{
		{"service_file_descriptors", n.ServiceConns},
		{"service_dials", n.ServiceDials},
		{"client_file_descriptors", n.ClientConns},
		{"client_dials", n.ClientDials},
	}, of...)
	s.counters("sluice_accept_pauses_total", "[BETA] Pauses of accepting, by the exhausted resource: "+
		"file_descriptors, dials (too many in flight) or other.", "resource", []reading{
		{"file_descriptors", n.PausedDescriptors}, {"dials", n.PausedDials}, {"other", n.AcceptErrors}}, of...)
}

func (s scrape) active(protocol string, n int64) {
	s.gauge("sluice_active_connections", "[ALPHA] Open connections.", float64(n), "protocol", protocol)
}

func (s scrape) connections(protocol string, results []reading) {
	s.counters("sluice_connections_total", "[BETA] New connections, by result: established, or reset for no_service, "+
		"no_endpoint, no_local_endpoint (policy Local), not_allowed (source ranges), dial_failed, no_local_ports (of "+
		"this node towards any endpoint), dial_evicted (the oldest, to make room), queue_full or queue_timeout; or "+
		"left_while_held or left_while_queued by the client. A client whose sluice.io/hold ends is no_endpoint. "+
		"Clients beyond a limit are in sluice_limited_connections_total. UDP has established only.",
		"result", results, "protocol", protocol)
}

func (s scrape) waits(protocol, wait string, results []reading) {
	s.counters("sluice_waits_total", "[ALPHA] Clients that waited: hold for a ready endpoint (sluice.io/hold), queue "+
		"for room at one (sluice.io/max-endpoint-connections). By result: began (all that waited), timeout, left (the "+
		"client ended it) or full (refused, because as many waited as may). UDP has timeout and full only.",
		"result", results, "protocol", protocol, "wait", wait)
}

func (s scrape) ended(protocol string, reasons []reading) {
	s.counters("sluice_ended_connections_total", "[BETA] UDP flows and SCTP associations that ended, by reason. UDP: "+
		"expired (idle), parked (closed early and remembered), moved (to another endpoint), service_share or "+
		"client_share (evicted, because the Service or client had its share) or limit (evicted, because all together "+
		"had too many). SCTP: shutdown, client or endpoint (which aborted), expired or limit.", "reason", reasons,
		"protocol", protocol)
}

func (s scrape) bytes(protocol string, in, out uint64) {
	s.counters("sluice_bytes_total", "[ALPHA] Bytes relayed: in from clients, out to clients.",
		"direction", []reading{{"in", in}, {"out", out}}, "protocol", protocol)
}

func (s scrape) packets(protocol string, in, out uint64) {
	s.counters("sluice_packets_total", "[ALPHA] UDP datagrams, and packets of the packet engine for SCTP, relayed: in "+
		"from clients, out to clients.", "direction", []reading{{"in", in}, {"out", out}}, "protocol", protocol)
}

func (s scrape) droppedPackets(protocol string, reasons []reading) {
	s.counters("sluice_dropped_packets_total", "[BETA] UDP datagrams, and packets of the packet engine for SCTP, "+
		"dropped, by reason.", "reason", reasons, "protocol", protocol)
}

func (s scrape) tcp(n tcp.Stats) {
	s.dialed(protocolTCP, n.Stats)
	s.bytes(protocolTCP, n.BytesIn, n.BytesOut)
	s.counters("sluice_transparent_dials_total", "[ALPHA] Dials of Services with sluice.io/transparent, by the source "+
		"address that the endpoint sees: client or node.", "source",
		[]reading{{"client", n.FromClient}, {"node", n.FromNode}})
}

func (s scrape) udp(n udp.Stats) {
	s.active(protocolUDP, n.Active)
	s.connections(protocolUDP, []reading{{"established", n.Created}})
	s.waits(protocolUDP, "hold", []reading{{"timeout", n.HoldExpired}, {"full", n.HoldFull}})
	s.ended(protocolUDP, []reading{
		{"expired", n.Expired},
		{"parked", n.Parked},
		{"moved", n.Moved},
		{"service_share", n.EvictedService},
		{"client_share", n.EvictedClient},
		{"limit", n.Evicted - min(n.Evicted, n.EvictedService+n.EvictedClient)},
	})
	s.bytes(protocolUDP, n.BytesIn, n.BytesOut)
	s.packets(protocolUDP, n.DatagramsIn, n.DatagramsOut)
	s.droppedPackets(protocolUDP, []reading{
		{"no_service", n.NoService},
		{"no_endpoint", n.NoBackend},
		{"no_local_endpoint", n.NoLocal},
		{"not_allowed", n.NotAllowed},
		{"no_file_descriptor", n.NoDescriptor},
		{"no_port", n.NoPort},
		{"unreachable", n.Unreachable},
		{"draining", n.Draining},
		{"hops_exceeded", n.HopsExceeded},
		{"malformed", n.Malformed},
		{"busy", n.Busy},
		{"too_long", n.TooLong},
	})
}

func (s scrape) sctp(n sctp.Stats) {
	s.dialed(protocolSCTP, n.Stats)
	s.ended(protocolSCTP, []reading{
		{"shutdown", n.Completed},
		{"client", n.ClientAborts},
		{"endpoint", n.BackendAborts},
		{"expired", n.Expired},
		{"limit", n.Evicted},
	})
	s.bytes(protocolSCTP, n.BytesIn, n.BytesOut)
	s.packets(protocolSCTP, n.PacketsIn, n.PacketsOut)
	s.droppedPackets(protocolSCTP, []reading{
		{"bad_checksum", n.BadChecksum},
		{"malformed", n.Malformed},
		{"bundled", n.Bundled},
		{"bad_tag", n.BadTag},
		{"unexpected", n.Unexpected},
		{"stray", n.Stray},
		{"hops_exceeded", n.HopsExceeded},
		{"asconf", n.ASCONF},
		{"draining", n.Draining},
		{"full", n.Full},
		{"busy", n.Busy},
	})
}

func (s scrape) agent(n agent.Status) {
	s.gauge("sluice_services", "[ALPHA] Service ports applied.", float64(n.Services))
	s.gauge("sluice_endpoints", "[ALPHA] Endpoints applied, counted once per Service port.", float64(n.Backends))
	s.gauge("sluice_node_port_conflicts", "[BETA] Node ports that another process on this node has bound.",
		float64(n.Conflicts))
	s.gauge("sluice_ports_without_socket", "[BETA] Ports of Service addresses that are not served, because their "+
		"Service's share of file descriptors, or that of all Services, is used up.", float64(n.Short))
	for _, path := range agent.Paths() {
		s.gauge("sluice_service_data_path", "[BETA] Service ports, by the data path in effect: userspace, queue, "+
			"nftables, iptables or ipvs.", float64(n.Paths[path]), "path", path.String())
	}
	s.counter("sluice_data_path_moves_total", "[ALPHA] Moves of Service ports from one data path to another.", n.Moves)
	for _, of := range []struct {
		kind string
		n    int
	}{{"data_path", n.Fallbacks}, {"policy", n.Policies}} {
		s.gauge("sluice_fallbacks", "[ALPHA] What Service ports request and do not get, by kind: data_path (another "+
			"one serves the port) or policy (the data path does not have it; schedulers of path ipvs are not counted).",
			float64(of.n), "kind", of.kind)
	}
	s.counter("sluice_rules_repaired_total", "[BETA] Repairs of rules that were missing or changed in the kernel.",
		n.Repairs)
	s.gauge("kubeproxy_sync_proxy_rules_service_changes_pending", "[ALPHA] Service changes not applied yet.",
		float64(n.ServicesPending))
	s.counter("kubeproxy_sync_proxy_rules_service_changes_total", "[ALPHA] Service changes seen.", n.ServiceChanges)
	s.gauge("kubeproxy_sync_proxy_rules_endpoint_changes_pending",
		"[ALPHA] EndpointSlice and Endpoints changes not applied yet.", float64(n.EndpointsPending))
	s.counter("kubeproxy_sync_proxy_rules_endpoint_changes_total",
		"[ALPHA] EndpointSlice and Endpoints changes seen.", n.EndpointChanges)
}

// excluded sends why endpoints get no new connections.
func (s scrape) excluded(n agent.Status, probes checks.Stats, outliers balancer.OutlierStats) {
	for _, of := range []struct {
		reason string
		n      int
	}{{"ejected", int(outliers.Active)}, {"drained", n.Drained}, {"failing_probe", probes.Failing},
		{"loop", n.Looping}} {
		s.gauge("sluice_endpoints_excluded", "[BETA] Endpoints that get no new connections, by reason: ejected (they "+
			"failed), drained (by sluice drain), failing_probe (sluice.io/readiness-probe) or loop (they lead back to "+
			"Sluice, such as the address of a Service). An endpoint counts once per Service port and reason.",
			float64(of.n), "reason", of.reason)
	}
	s.counters("sluice_ejections_total", "[ALPHA] Endpoints that failed often enough to be ejected, by result: "+
		"enforced; overflow (not ejected, because the Service already had --outlier-max-ejection-percent ejected); or "+
		"spared (not ejected, because no endpoint of the Service had answered: this node's own network may be at "+
		"fault).", "result", []reading{{"enforced", outliers.Enforced}, {"overflow", outliers.Overflow},
		{"spared", outliers.Spared}})
}

// Queue is what the kernel has asked of data path queue (kernelmodes/queue.Stats).
type Queue struct {
	Answering                             bool
	Chosen, None, Unknown, Strays, Missed uint64 // flows
	Uncounted                             Lacks
}

// Lacks say for whom there was no room.
type Lacks struct{ Room, Client, Service uint64 }

func (s scrape) queue(n Queue) {
	answering := 0.0
	if n.Answering {
		answering = 1
	}
	s.gauge("sluice_queue_answering", "[BETA] 1 while this process chooses endpoints on data path queue; 0 while the "+
		"kernel does, or no Service was there yet.", answering)
	s.counters("sluice_queue_flows_total", "[ALPHA] New flows on data path queue, by result: chosen; none (no "+
		"endpoint, or the client is not admitted); unknown (the rules do not have the endpoint yet); stray (a packet "+
		"of a connection that the kernel has forgotten); or queue_full (the kernel chose).", "result", []reading{
		{"chosen", n.Chosen}, {"none", n.None}, {"unknown", n.Unknown}, {"stray", n.Strays}, {"queue_full", n.Missed}})
	s.counters("sluice_queue_uncounted_flows_total", "[BETA] Flows on data path queue that are forwarded but not "+
		"counted in flight, by the share that was full: all flows, the client (--max-client-share) or the Service "+
		"(--max-service-share).", "share", []reading{{"all", n.Uncounted.Room}, {"client", n.Uncounted.Client},
		{"service", n.Uncounted.Service}})
}
