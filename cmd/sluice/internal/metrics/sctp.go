package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-lb/sluice/sctp"
)

// sctpEngine has one series, with the engine in use; none before the first SCTP Service.
var sctpEngine = prometheus.NewDesc("sluice_sctp_engine",
	"1 for the engine that forwards SCTP, by reason: requested (--sctp-engine) or detected (what the kernel supports).",
	[]string{"engine", "reason"}, nil)

type sctpValues = []value[sctp.Stats]

var sctpMetrics = []metric[sctp.Stats]{
	gauge("sluice_sctp_active_associations", "Open SCTP associations.",
		one(func(s *sctp.Stats) float64 { return float64(s.Active) })),
	gauge("sluice_sctp_dialling_associations",
		"SCTP associations waiting for an endpoint to answer the dial.",
		one(func(s *sctp.Stats) float64 { return float64(s.Dialling) })),
	counter("sluice_sctp_accepted_associations_total", "SCTP associations requested by clients.",
		one(func(s *sctp.Stats) float64 { return float64(s.Accepted) })),
	counter("sluice_sctp_associations_total",
		"SCTP associations requested by clients, by result: established, or aborted for no_service, "+
			"no_backend, no_local_backend (policy Local), not_allowed (source ranges) or dial_failed.",
		by("result", sctpValues{
			{"established", func(s *sctp.Stats) float64 { return float64(s.Established) }},
			{"no_service", func(s *sctp.Stats) float64 { return float64(s.NoService) }},
			{"no_backend", func(s *sctp.Stats) float64 { return float64(s.NoBackend) }},
			{"no_local_backend", func(s *sctp.Stats) float64 { return float64(s.NoLocal) }},
			{"not_allowed", func(s *sctp.Stats) float64 { return float64(s.NotAllowed) }},
			{"dial_failed", func(s *sctp.Stats) float64 { return float64(s.DialGaveUp) }},
		})),
	counter("sluice_sctp_dial_attempts_total", "Dials to SCTP endpoints.",
		one(func(s *sctp.Stats) float64 { return float64(s.Dials) })),
	counter("sluice_sctp_dials_total",
		"Failed dials to SCTP endpoints, by result: refused or timeout.",
		by("result", sctpValues{
			{"refused", func(s *sctp.Stats) float64 { return float64(s.DialRefused) }},
			{"timeout", func(s *sctp.Stats) float64 { return float64(s.DialTimedOut) }},
		})),
	counter("sluice_sctp_dials_deferred_total",
		"SCTP dials deferred because file descriptors, local ports or memory of this node were "+
			"exhausted.",
		one(func(s *sctp.Stats) float64 { return float64(s.Shortages) })),
	counter("sluice_sctp_associations_ended_total",
		"SCTP associations that have ended, by reason: shutdown, client or backend (aborted by it), "+
			"expired (idle, or not established in time) or evicted (to make room).",
		by("reason", sctpValues{
			{"shutdown", func(s *sctp.Stats) float64 { return float64(s.Completed) }},
			{"client", func(s *sctp.Stats) float64 { return float64(s.ClientAborts) }},
			{"backend", func(s *sctp.Stats) float64 { return float64(s.BackendAborts) }},
			{"expired", func(s *sctp.Stats) float64 { return float64(s.Expired) }},
			{"evicted", func(s *sctp.Stats) float64 { return float64(s.Evicted) }},
		})),
	counter("sluice_sctp_messages_total",
		"User messages relayed over SCTP: in from clients, out to clients. The packet engine includes "+
			"retransmissions.",
		by("direction", sctpValues{
			{"in", func(s *sctp.Stats) float64 { return float64(s.MessagesIn) }},
			{"out", func(s *sctp.Stats) float64 { return float64(s.MessagesOut) }},
		})),
	counter("sluice_sctp_bytes_total",
		"Bytes of user messages relayed over SCTP: in from clients, out to clients.",
		by("direction", sctpValues{
			{"in", func(s *sctp.Stats) float64 { return float64(s.BytesIn) }},
			{"out", func(s *sctp.Stats) float64 { return float64(s.BytesOut) }},
		})),
	counter("sluice_sctp_packets_total",
		"Packets relayed by the packet engine: in from clients, out to clients.",
		by("direction", sctpValues{
			{"in", func(s *sctp.Stats) float64 { return float64(s.PacketsIn) }},
			{"out", func(s *sctp.Stats) float64 { return float64(s.PacketsOut) }},
		})),
	counter("sluice_sctp_dropped_packets_total",
		"Packets that the packet engine dropped, by reason.",
		by("reason", sctpValues{
			{"bad_checksum", func(s *sctp.Stats) float64 { return float64(s.BadChecksum) }},
			{"malformed", func(s *sctp.Stats) float64 { return float64(s.Malformed) }},
			{"bundled", func(s *sctp.Stats) float64 { return float64(s.Bundled) }},
			{"bad_tag", func(s *sctp.Stats) float64 { return float64(s.BadTag) }},
			{"unexpected", func(s *sctp.Stats) float64 { return float64(s.Unexpected) }},
			{"stray", func(s *sctp.Stats) float64 { return float64(s.Stray) }},
			{"asconf", func(s *sctp.Stats) float64 { return float64(s.ASCONF) }},
			{"draining", func(s *sctp.Stats) float64 { return float64(s.Draining) }},
			{"full", func(s *sctp.Stats) float64 { return float64(s.Full) }},
			{"busy", func(s *sctp.Stats) float64 { return float64(s.Busy) }},
		})),
	counter("sluice_sctp_too_long_messages_total",
		"User messages over the size limit of the socket engine, which aborted their associations.",
		one(func(s *sctp.Stats) float64 { return float64(s.TooLong) })),
	counter("sluice_sctp_accept_pauses_total",
		"Pauses of accepting in the socket engine, by the exhausted resource: file_descriptors, dials "+
			"(too many in flight) or other.",
		by("resource", sctpValues{
			{"file_descriptors", func(s *sctp.Stats) float64 { return float64(s.PausedDescriptors) }},
			{"dials", func(s *sctp.Stats) float64 { return float64(s.PausedDials) }},
			{"other", func(s *sctp.Stats) float64 { return float64(s.AcceptErrors) }},
		})),
	counter("sluice_sctp_errors_total", "System calls on SCTP sockets that failed, by call.", by("call", sctpValues{
		{"send", func(s *sctp.Stats) float64 { return float64(s.SendErrors) }},
		{"receive", func(s *sctp.Stats) float64 { return float64(s.ReceiveErrors) }},
	})),
}
