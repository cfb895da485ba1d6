package metrics

import (
	"github.com/sluice-lb/sluice/cmd/sluice/internal/agent"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/checks"
	"github.com/sluice-lb/sluice/internal/session"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/sctp"
	"github.com/sluice-lb/sluice/tcp"
	"github.com/sluice-lb/sluice/udp"
)

// outcomes are what became of connections.
func outcomes(n session.Stats[uint64, int64]) []reading {
	return []reading{
		{"established", n.Established},
		{"no_service", n.NoService},
		{"no_backend", n.NoBackend},
		{"no_local_backend", n.NoLocal},
		{"not_allowed", n.NotAllowed},
		{"dial_failed", n.DialGaveUp},
		{"no_local_ports", n.NoPorts},
		{"dial_evicted", n.DialEvicted},
		{"left_while_held", n.HoldLeft},
		{"queue_full", n.QueueFull},
		{"queue_timeout", n.QueueTimedOut},
		{"left_while_queued", n.QueueLeft},
	}
}

const queuesIs = "Clients that found every endpoint full and waited, by result: queued (all of them), timeout " +
	"(then reset), " +
	"left (the client ended it), or full (reset immediately, because sluice.io/max-pending-connections waited " +
	"already)."

// queued is what became of clients that had to wait in the queue of their Service.
func queued(n session.Stats[uint64, int64]) []reading {
	return []reading{{"queued", n.Queues}, {"timeout", n.QueueTimedOut}, {"left", n.QueueLeft}, {"full", n.QueueFull}}
}

const limitsAre = "Connections reset immediately by a limit of their Service: max_connections, " +
	"max_client_connections or " +
	"max_client_connection_rate."

const notLimitedAre = "Connections that were not limited because their Service has more than 65,536 clients."

// limits are connections beyond limits.
func limits(n session.Limits[uint64]) []reading {
	return []reading{
		{"max_connections", n.OverConnections},
		{"max_client_connections", n.OverClientConnections},
		{"max_client_connection_rate", n.OverClientRate},
	}
}

const holdsIs = "Clients that found no ready endpoint and waited, by result: held (all of them), expired (then " +
	"refused), left " +
	"(the client ended it), or full (refused immediately, because sluice.io/hold-connections waited already)."

// held is what became of clients that had to wait.
func held(n session.Stats[uint64, int64]) []reading {
	return []reading{{"held", n.Holds}, {"expired", n.HoldExpired}, {"left", n.HoldLeft}, {"full", n.HoldFull}}
}

// policyResets are connections that policies have reset.
func policyResets(n session.Stats[uint64, int64]) []reading {
	return []reading{
		{"drain", n.DrainReset},
		{"idle_timeout", n.IdleTimedOut},
		{"max_connection_duration", n.DurationExceeded},
		{"half_close_timeout", n.HalfCloseTimedOut},
	}
}

// refusals are connections of Services and clients that had their share already.
func refusals(n session.Refusals[uint64]) []reading {
	return []reading{
		{"service_file_descriptors", n.ServiceConns},
		{"service_dials", n.ServiceDials},
		{"client_file_descriptors", n.ClientConns},
		{"client_dials", n.ClientDials},
	}
}

func (s scrape) tcp(n tcp.Stats) {
	s.gauge("sluice_tcp_active_connections", "Open TCP connections.", float64(n.Active))
	s.gauge("sluice_tcp_dialling_connections", "TCP connections waiting for an endpoint to answer the dial.",
		float64(n.Dialling))
	s.counter("sluice_tcp_accepted_connections_total", "TCP connections accepted.", n.Accepted)
	s.counter("sluice_tcp_spread_connections_total",
		"TCP connections that were moved after accept to an event loop with fewer connections.", n.Spread)
	s.counters("sluice_tcp_connections_total",
		"TCP connections accepted, by result: established, or reset for no_service, no_backend, "+
			"no_local_backend (policy Local), not_allowed (source ranges), dial_failed, no_local_ports (of this "+
			"node towards any endpoint), dial_evicted (the oldest, to make room), queue_full or queue_timeout; or "+
			"left_while_held or left_while_queued by the client.",
		"result", outcomes(n.Stats))
	s.gauge("sluice_tcp_queued_connections",
		"TCP connections that wait because every endpoint has sluice.io/max-endpoint-connections.", float64(n.Queued))
	s.counters("sluice_tcp_queues_total", queuesIs, "result", queued(n.Stats))
	s.counters("sluice_tcp_limited_connections_total", limitsAre, "limit", limits(n.Limits))
	s.counter("sluice_tcp_clients_not_limited_total", notLimitedAre, n.NotLimited)
	s.gauge("sluice_tcp_held_connections",
		"TCP connections that wait because no endpoint is ready (sluice.io/hold).", float64(n.Held))
	s.counters("sluice_tcp_holds_total", holdsIs, "result", held(n.Stats))
	s.counters("sluice_tcp_refused_connections_total",
		"TCP connections reset by a share: --max-service-share or --max-client-share.", "share", refusals(n.Refusals))
	s.counter("sluice_tcp_dial_attempts_total", "Dials to TCP endpoints.", n.Dials)
	s.counters("sluice_tcp_dials_total", "Finished dials to TCP endpoints, by result: established, refused or "+
		"timeout.",
		"result", []reading{{"established", n.Established}, {"refused", n.DialRefused}, {"timeout", n.DialTimedOut}})
	s.gauge("sluice_tcp_transparent_connections", "Open TCP connections whose endpoints see the client's own "+
		"address "+
		"(sluice.io/transparent).", float64(n.Transparent))
	s.counters("sluice_tcp_transparent_dials_total",
		"Dials of Services with sluice.io/transparent, by the source address that the endpoint sees: client or "+
			"node.",
		"source", []reading{{"client", n.FromClient}, {"node", n.FromNode}})
	s.counter("sluice_tcp_dials_deferred_total",
		"TCP dials deferred because file descriptors, local ports or memory of this node were "+
			"exhausted.", n.Shortages)
	s.counters("sluice_tcp_resets_total", "Relayed TCP connections reset, by the side that failed.",
		"side", []reading{{"client", n.ClientResets}, {"backend", n.BackendResets}})
	s.counters("sluice_tcp_policy_resets_total", "Relayed TCP connections reset by a policy of their Service "+
		"(docs/policies.md): drain, idle_timeout, max_connection_duration or half_close_timeout.", "policy",
		policyResets(n.Stats))
	s.counters("sluice_tcp_bytes_total", "Bytes relayed over TCP: in from clients, out to clients.",
		"direction", []reading{{"in", n.BytesIn}, {"out", n.BytesOut}})
	s.counters("sluice_tcp_accept_pauses_total",
		"Pauses of accepting, by the exhausted resource: file_descriptors, dials (too many in flight) or other.",
		"resource", pauses(n.PausedDescriptors, n.PausedDials, n.AcceptErrors))
}

// pauses are those of accepting, by the exhausted resource.
func pauses(descriptors, dials, other uint64) []reading {
	return []reading{{"file_descriptors", descriptors}, {"dials", dials}, {"other", other}}
}

func (s scrape) udp(n udp.Stats) {
	s.gauge("sluice_udp_active_flows", "Open UDP flows.", float64(n.Active))
	s.counter("sluice_udp_flows_total", "UDP flows opened.", n.Created)
	s.gauge("sluice_udp_held_clients",
		"UDP clients whose datagrams wait because no endpoint is ready (sluice.io/hold).", float64(n.Held))
	s.counters("sluice_udp_holds_total",
		"UDP clients whose waiting datagrams were dropped, by result: expired, or full (too many clients, or too "+
			"many datagrams of one).", "result",
		[]reading{{"expired", n.HoldExpired}, {"full", n.HoldFull}})
	s.counter("sluice_udp_flows_resumed_total",
		"UDP flows that were opened at the endpoint that Sluice remembered for the client.", n.Resumed)
	s.counter("sluice_udp_flows_resumed_port_lost_total",
		"Resumed UDP flows that got another source port, because theirs was taken.", n.PortsLost)
	s.counters("sluice_udp_flows_ended_total",
		"UDP flows closed, by reason: expired (idle), parked (remembered, of many that were answered once) or "+
			"evicted "+
			"(to make room).",
		"reason", []reading{{"expired", n.Expired}, {"parked", n.Parked}, {"evicted", n.Evicted}})
	s.counters("sluice_udp_flows_evicted_total",
		"UDP flows evicted, by reason: service_share or client_share (--max-service-share, --max-client-share), or "+
			"limit (all flows together, file descriptors, ports or memory).",
		"reason", []reading{{"service_share", n.EvictedService}, {"client_share", n.EvictedClient},
			{"limit", n.Evicted - min(n.Evicted, n.EvictedService+n.EvictedClient)}})
	s.counters("sluice_udp_flows_rerouted_total",
		"UDP flows moved away from an endpoint, by reason: gone (removed from the Service) or refused "+
			"(ICMP port or host unreachable).",
		"reason", []reading{{"gone", n.Moved}, {"refused", n.Refused}})
	s.counter("sluice_udp_flows_not_answered_total",
		"Times that a UDP endpoint did not answer within 1.5 s, for Services with "+
			"sluice.io/udp-responses.", n.NotAnswered)
	s.counters("sluice_udp_datagrams_total", "Datagrams relayed: in from clients, out to clients.",
		"direction", []reading{{"in", n.DatagramsIn}, {"out", n.DatagramsOut}})
	s.counters("sluice_udp_bytes_total", "Bytes relayed over UDP: in from clients, out to clients.",
		"direction", []reading{{"in", n.BytesIn}, {"out", n.BytesOut}})
	s.counter("sluice_udp_retransmitted_datagrams_total",
		"Datagrams sent again to another endpoint after one refused them.", n.Resent)
	s.counters("sluice_udp_dropped_datagrams_total", "Datagrams dropped, by reason.", "reason", []reading{
		{"no_service", n.NoService},
		{"no_backend", n.NoBackend},
		{"no_local_backend", n.NoLocal},
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
	s.counters("sluice_udp_errors_total", "System calls on UDP sockets that failed, by call.",
		"call", []reading{{"send", n.SendErrors}, {"receive", n.ReceiveErrors}})
}

func (s scrape) sctp(n sctp.Stats) {
	s.gauge("sluice_sctp_active_associations", "Open SCTP associations.", float64(n.Active))
	s.gauge("sluice_sctp_dialling_associations", "SCTP associations waiting for an endpoint to answer the dial.",
		float64(n.Dialling))
	s.counter("sluice_sctp_accepted_associations_total", "SCTP associations requested by clients.", n.Accepted)
	s.counters("sluice_sctp_associations_total",
		"SCTP associations requested by clients, by result: established, or aborted for no_service, "+
			"no_backend, no_local_backend (policy Local), not_allowed (source ranges), dial_failed, no_local_ports "+
			"(of this node towards any endpoint), dial_evicted (the oldest, to make room), queue_full or "+
			"queue_timeout; or left_while_held or left_while_queued by the client.",
		"result", outcomes(n.Stats))
	s.gauge("sluice_sctp_held_associations",
		"SCTP associations that wait because no endpoint is ready (sluice.io/hold).", float64(n.Held))
	s.counters("sluice_sctp_holds_total", holdsIs, "result", held(n.Stats))
	s.gauge("sluice_sctp_queued_associations",
		"SCTP associations that wait because every endpoint has "+
			"sluice.io/max-endpoint-connections.", float64(n.Queued))
	s.counters("sluice_sctp_queues_total", queuesIs, "result", queued(n.Stats))
	s.counters("sluice_sctp_limited_associations_total", limitsAre, "limit", limits(n.Limits))
	s.counter("sluice_sctp_clients_not_limited_total", notLimitedAre, n.NotLimited)
	s.counters("sluice_sctp_refused_associations_total",
		"SCTP associations refused by a share: --max-service-share or --max-client-share.",
		"share", refusals(n.Refusals))
	s.counter("sluice_sctp_dial_attempts_total", "Dials to SCTP endpoints.", n.Dials)
	s.counters("sluice_sctp_dials_total", "Failed dials to SCTP endpoints, by result: refused or timeout.",
		"result", []reading{{"refused", n.DialRefused}, {"timeout", n.DialTimedOut}})
	s.counter("sluice_sctp_dials_deferred_total",
		"SCTP dials deferred because file descriptors, local ports or memory of this node were "+
			"exhausted.", n.Shortages)
	s.counters("sluice_sctp_associations_ended_total",
		"Ended SCTP associations, by reason: shutdown, client or backend (which aborted), expired (idle, or "+
			"not established in time) or evicted (to make room).",
		"reason", []reading{
			{"shutdown", n.Completed},
			{"client", n.ClientAborts},
			{"backend", n.BackendAborts},
			{"expired", n.Expired},
			{"evicted", n.Evicted},
		})
	s.counters("sluice_sctp_policy_aborts_total", "SCTP associations aborted by a policy of their Service "+
		"(docs/policies.md), of the kernel's SCTP: drain, idle_timeout, max_connection_duration or "+
		"half_close_timeout.",
		"policy", policyResets(n.Stats))
	s.counters("sluice_sctp_messages_total", "User messages relayed over SCTP: in from clients, out to clients. "+
		"The packet engine includes retransmissions.",
		"direction", []reading{{"in", n.MessagesIn}, {"out", n.MessagesOut}})
	s.counters("sluice_sctp_bytes_total",
		"Bytes of user messages relayed over SCTP: in from clients, out to clients.",
		"direction", []reading{{"in", n.BytesIn}, {"out", n.BytesOut}})
	s.counters("sluice_sctp_packets_total", "Packets relayed by the packet engine: in from clients, out to clients.",
		"direction", []reading{{"in", n.PacketsIn}, {"out", n.PacketsOut}})
	s.counters("sluice_sctp_dropped_packets_total", "Packets that the packet engine dropped, by reason.",
		"reason", []reading{
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
	s.counter("sluice_sctp_too_long_messages_total",
		"User messages over the size limit of the socket engine, which aborted their associations.", n.TooLong)
	s.counters("sluice_sctp_accept_pauses_total", "Pauses of accepting in the socket engine, by the exhausted "+
		"resource: file_descriptors, dials (too many in flight) or other.",
		"resource", pauses(n.PausedDescriptors, n.PausedDials, n.AcceptErrors))
	s.counters("sluice_sctp_errors_total", "System calls on SCTP sockets that failed, by call.",
		"call", []reading{{"send", n.SendErrors}, {"receive", n.ReceiveErrors}})
}

func (s scrape) agent(n agent.Status) {
	s.gauge("sluice_services", "Service ports applied.", float64(n.Services))
	s.gauge("sluice_frontends", "Service addresses and ports applied.", float64(n.Frontends))
	s.gauge("sluice_node_port_conflicts", "Node ports that another process on this node has bound.",
		float64(n.Conflicts))
	s.gauge("sluice_ports_without_socket",
		"Ports of Service addresses that are not served because their Service's share of file descriptors, or "+
			"that of all Services, is used up.", float64(n.Short))
	s.gauge("sluice_looping_endpoints",
		"Endpoints not used because they lead back to Sluice, such as the address of a Service; counted once per "+
			"Service port.", float64(n.Looping))
	s.gauge("sluice_endpoints_drained", "Endpoints that an operator has drained (sluice drain), counted once per "+
		"Service port.", float64(n.Drained))
	s.gauge("sluice_backends", "Endpoints applied, counted once per Service port.", float64(n.Backends))
	for _, path := range agent.Paths() {
		s.gauge("sluice_service_data_path",
			"Service ports, by the data path in effect: userspace, queue, nftables, iptables or ipvs.",
			float64(n.Paths[path]), "path", path.String())
	}
	for _, reason := range agent.Reasons() {
		s.gauge("sluice_service_data_path_reason",
			"Service ports, by what decides their data path: mode; annotation (sluice.io/data-path); policy (a "+
				"cheaper path lacks one); cost (auto: no cheaper path does it); host (this host lacks the path); "+
				"stabilization (auto: a cheaper path does it, but not for long enough yet); or "+
				"exit.", float64(n.Reasons[reason]), "reason", reason.String())
	}
	s.counter("sluice_data_path_moves_total", "Moves of Service ports from one data path to another.", n.Moves)
	s.counter("sluice_data_path_moves_deferred_total",
		"Moves to a cheaper data path deferred by --auto-stabilization.", n.Unmoved)
	s.gauge("sluice_data_path_fallbacks",
		"Service ports whose requested data path is unavailable, so that another one serves them.",
		float64(n.Fallbacks))
	s.gauge("sluice_policy_fallbacks",
		"Requested policies that the Service's data path does not have, counted once per Service port. "+
			"Schedulers of path ipvs are not counted.", float64(n.Policies))
	s.counters("sluice_syncs_total", "Syncs of the data path with a change, by result.",
		"result", []reading{{"ok", n.Applied}, {"error", n.Failures}})
	s.counter("sluice_rules_repaired_total", "Repairs of rules that were missing or changed in the "+
		"kernel.", n.Repairs)
	s.counter("sluice_rule_syncs_deferred_total",
		"Rule syncs deferred by --iptables-min-sync-period or --ipvs-min-sync-period.", n.Deferred)
	s.gauge("kubeproxy_sync_proxy_rules_service_changes_pending", "Service changes not applied yet.",
		float64(n.ServicesPending))
	s.counter("kubeproxy_sync_proxy_rules_service_changes_total", "Service changes seen.", n.ServiceChanges)
	s.gauge("kubeproxy_sync_proxy_rules_endpoint_changes_pending",
		"EndpointSlice and Endpoints changes not applied yet.", float64(n.EndpointsPending))
	s.counter("kubeproxy_sync_proxy_rules_endpoint_changes_total", "EndpointSlice and Endpoints changes seen.",
		n.EndpointChanges)
}

// Queue is what the kernel has asked of data path queue (kernelmodes/queue.Stats).
type Queue struct {
	Answering                     bool
	Chosen, None, Unknown, Strays uint64 // flows

	Packets, Repeated, Odd, Late, Missed uint64

	Known                             int64 // flows in flight
	NotFollowed                       Lacks
	Refused, Silent, Retried, Unheard uint64

	Numbered, Unnumbered int // endpoints
}

// Lacks say for whom there was no room.
type Lacks struct{ Room, Client, Service uint64 }

func (l *Lacks) readings() []reading {
	return []reading{{"all", l.Room}, {"client", l.Client}, {"service", l.Service}}
}

func oneIf(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

func (s scrape) queue(n Queue) {
	s.gauge("sluice_queue_answering",
		"1 while this process chooses endpoints on data path queue; 0 while the kernel does, or no Service was "+
			"there yet.", oneIf(n.Answering))
	s.counters("sluice_queue_flows_total",
		"New flows on data path queue, by result: chosen; none (no endpoint, or the client is not admitted); "+
			"unknown (the rules do not have the endpoint yet); or stray (a packet of a connection that the "+
			"kernel has "+
			"forgotten).",
		"result", []reading{{"chosen", n.Chosen}, {"none", n.None}, {"unknown", n.Unknown}, {"stray", n.Strays}})
	s.gauge("sluice_queue_active",
		"Flows in flight on data path queue. If no policy of the Service needs open connections, TCP counts until "+
			"it is answered and UDP does not count.",
		float64(n.Known))
	s.counters("sluice_queue_not_followed_total",
		"Flows on data path queue that are forwarded but not counted in flight, by the share that was full: all "+
			"flows, the client (--max-client-share) or the Service "+
			"(--max-service-share).", "share", n.NotFollowed.readings())
	s.counters("sluice_queue_failures_total",
		"Failures of endpoints on data path queue, by result: refused (the first answer was a reset) or "+
			"silent.", "result",
		[]reading{{"refused", n.Refused}, {"silent", n.Silent}})
	s.counter("sluice_queue_retries_total",
		"Flows on data path queue whose client gets another endpoint for its next packet, because the first was "+
			"silent.", n.Retried)
	s.counter("sluice_queue_lost_events_total",
		"Events of conntrack that were lost; Sluice reads the table instead.",
		n.Unheard)
	s.counters("sluice_queue_packets_total",
		"Packets from the kernel's queues, by kind: first of a flow, repeated (same answer as the first), odd "+
			"(fragments without ports, dropped) or late (gone when the answer came).", "kind",
		[]reading{{"first", n.Packets - min(n.Packets, n.Repeated+n.Odd)}, {"repeated", n.Repeated}, {"odd", n.Odd},
			{"late", n.Late}})
	for _, of := range []struct {
		state string
		n     int
	}{{"numbered", n.Numbered}, {"unnumbered", n.Unnumbered}} {
		s.gauge("sluice_queue_endpoints",
			"Endpoints on data path queue, by whether they have one of the 65,535 numbers of their address "+
				"family. A Service has --max-service-share of them at most. If an endpoint without a number is "+
				"chosen, the kernel chooses instead.", float64(of.n), "state", of.state)
	}
	s.counter("sluice_queue_missed_packets_total",
		"First packets on data path queue that found the queue full; the kernel chose.", n.Missed)
}

func (s scrape) outliers(n lb.OutlierStats) {
	s.gauge("sluice_ejections_active",
		"Endpoints that get no new connections because they failed, counted once per Service "+
			"port.", float64(n.Active))
	s.counter("sluice_ejections_enforced_total", "Ejections of endpoints.", n.Enforced)
	s.counter("sluice_ejections_overflow_total",
		"Ejections that did not happen because the Service already had --outlier-max-ejection-percent "+
			"ejected.", n.Overflow)
	s.counter("sluice_ejections_spared_total",
		"Ejections that did not happen because no endpoint of the Service had answered since the failures began. "+
			"This node's own network may be at fault.", n.Spared)
}

func (s scrape) checks(n checks.Stats) {
	s.gauge("sluice_endpoints_failing_checks",
		"Endpoints that get no new connections because they fail sluice.io/readiness-probe, counted once per "+
			"Service port.", float64(n.Failing))
	s.counters("sluice_endpoint_checks_total", "Probes of endpoints, by result.",
		"result", []reading{{"passed", n.Passed}, {"failed", n.Failed}})
	s.counter("sluice_endpoint_checks_postponed_total",
		"Probes that began more than 1 s late because their namespace had its share of the probes in "+
			"flight.", n.Postponed)
}
