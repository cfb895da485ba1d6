package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-lb/sluice/sctp"
)

const (
	associations   = "sluice_sctp_associations_total"
	associationsIs = "SCTP associations that clients asked for, by what became of them: established, or aborted for no_service, no_backend, no_local_backend (policy Local), not_allowed (source ranges) or dial_failed."
	sctpDials      = "sluice_sctp_dials_total"
	sctpDialsIs    = "Attempts to reach an SCTP backend that have failed, by result: refused or timeout."
	ends           = "sluice_sctp_associations_ended_total"
	endsIs         = "SCTP associations that have ended, by reason: shutdown, client or backend (aborted by it), expired (idle, or not established in time) or evicted (to make room)."
	messages       = "sluice_sctp_messages_total"
	messagesIs     = "User messages relayed over SCTP: in from clients, out to clients. The packet engine counts what is sent again again."
	messageBytes   = "sluice_sctp_bytes_total"
	messageBytesIs = "Bytes of user messages relayed over SCTP: in from clients, out to clients."
	packets        = "sluice_sctp_packets_total"
	packetsIs      = "Packets relayed by the packet engine: in from clients, out to clients."
	sctpDropped    = "sluice_sctp_dropped_packets_total"
	sctpDroppedIs  = "Packets that the packet engine dropped, by reason."
	sctpPauses     = "sluice_sctp_accept_pauses_total"
	sctpPausesIs   = "How often the socket engine paused accepting, by what was short: descriptors, dials (too many in flight) or other."
	sctpErrors     = "sluice_sctp_errors_total"
	sctpErrorsIs   = "System calls on SCTP sockets that failed, by call."
)

// sctpEngine has one series, with the engine in use; none before the first SCTP Service.
var sctpEngine = prometheus.NewDesc("sluice_sctp_engine", "1 for the engine that forwards SCTP, with the reason why it was chosen.", []string{"engine", "why"}, nil)

var sctpSeries = []reading[sctp.Stats]{
	{gauge("sluice_sctp_active_associations", "SCTP associations open now."), func(s *sctp.Stats) float64 { return float64(s.Active) }},
	{gauge("sluice_sctp_dialling_associations", "SCTP associations whose backend has not answered yet."), func(s *sctp.Stats) float64 { return float64(s.Dialling) }},
	{counter("sluice_sctp_accepted_associations_total", "SCTP associations that clients asked for."), func(s *sctp.Stats) float64 { return float64(s.Accepted) }},
	{counter(associations, associationsIs, "result", "established"), func(s *sctp.Stats) float64 { return float64(s.Established) }},
	{counter(associations, associationsIs, "result", "no_service"), func(s *sctp.Stats) float64 { return float64(s.NoService) }},
	{counter(associations, associationsIs, "result", "no_backend"), func(s *sctp.Stats) float64 { return float64(s.NoBackend) }},
	{counter(associations, associationsIs, "result", "no_local_backend"), func(s *sctp.Stats) float64 { return float64(s.NoLocal) }},
	{counter(associations, associationsIs, "result", "not_allowed"), func(s *sctp.Stats) float64 { return float64(s.NotAllowed) }},
	{counter(associations, associationsIs, "result", "dial_failed"), func(s *sctp.Stats) float64 { return float64(s.DialGaveUp) }},
	{counter("sluice_sctp_dial_attempts_total", "Attempts to reach an SCTP backend."), func(s *sctp.Stats) float64 { return float64(s.Dials) }},
	{counter(sctpDials, sctpDialsIs, "result", "refused"), func(s *sctp.Stats) float64 { return float64(s.DialRefused) }},
	{counter(sctpDials, sctpDialsIs, "result", "timeout"), func(s *sctp.Stats) float64 { return float64(s.DialTimedOut) }},
	{counter("sluice_sctp_dial_shortages_total", "How often an SCTP dial lacked descriptors, ports or memory of this host."), func(s *sctp.Stats) float64 { return float64(s.Shortages) }},
	{counter(ends, endsIs, "reason", "shutdown"), func(s *sctp.Stats) float64 { return float64(s.Completed) }},
	{counter(ends, endsIs, "reason", "client"), func(s *sctp.Stats) float64 { return float64(s.ClientAborts) }},
	{counter(ends, endsIs, "reason", "backend"), func(s *sctp.Stats) float64 { return float64(s.BackendAborts) }},
	{counter(ends, endsIs, "reason", "expired"), func(s *sctp.Stats) float64 { return float64(s.Expired) }},
	{counter(ends, endsIs, "reason", "evicted"), func(s *sctp.Stats) float64 { return float64(s.Evicted) }},
	{counter(messages, messagesIs, "direction", "in"), func(s *sctp.Stats) float64 { return float64(s.MessagesIn) }},
	{counter(messages, messagesIs, "direction", "out"), func(s *sctp.Stats) float64 { return float64(s.MessagesOut) }},
	{counter(messageBytes, messageBytesIs, "direction", "in"), func(s *sctp.Stats) float64 { return float64(s.BytesIn) }},
	{counter(messageBytes, messageBytesIs, "direction", "out"), func(s *sctp.Stats) float64 { return float64(s.BytesOut) }},
	{counter(packets, packetsIs, "direction", "in"), func(s *sctp.Stats) float64 { return float64(s.PacketsIn) }},
	{counter(packets, packetsIs, "direction", "out"), func(s *sctp.Stats) float64 { return float64(s.PacketsOut) }},
	{counter(sctpDropped, sctpDroppedIs, "reason", "bad_checksum"), func(s *sctp.Stats) float64 { return float64(s.BadChecksum) }},
	{counter(sctpDropped, sctpDroppedIs, "reason", "malformed"), func(s *sctp.Stats) float64 { return float64(s.Malformed) }},
	{counter(sctpDropped, sctpDroppedIs, "reason", "bundled"), func(s *sctp.Stats) float64 { return float64(s.Bundled) }},
	{counter(sctpDropped, sctpDroppedIs, "reason", "bad_tag"), func(s *sctp.Stats) float64 { return float64(s.BadTag) }},
	{counter(sctpDropped, sctpDroppedIs, "reason", "unexpected"), func(s *sctp.Stats) float64 { return float64(s.Unexpected) }},
	{counter(sctpDropped, sctpDroppedIs, "reason", "stray"), func(s *sctp.Stats) float64 { return float64(s.Stray) }},
	{counter(sctpDropped, sctpDroppedIs, "reason", "asconf"), func(s *sctp.Stats) float64 { return float64(s.ASCONF) }},
	{counter(sctpDropped, sctpDroppedIs, "reason", "draining"), func(s *sctp.Stats) float64 { return float64(s.Draining) }},
	{counter(sctpDropped, sctpDroppedIs, "reason", "full"), func(s *sctp.Stats) float64 { return float64(s.Full) }},
	{counter(sctpDropped, sctpDroppedIs, "reason", "busy"), func(s *sctp.Stats) float64 { return float64(s.Busy) }},
	{counter("sluice_sctp_too_long_messages_total", "User messages that ended their association because they were longer than the socket engine takes."), func(s *sctp.Stats) float64 { return float64(s.TooLong) }},
	{counter(sctpPauses, sctpPausesIs, "short", "descriptors"), func(s *sctp.Stats) float64 { return float64(s.PausedDescriptors) }},
	{counter(sctpPauses, sctpPausesIs, "short", "dials"), func(s *sctp.Stats) float64 { return float64(s.PausedDials) }},
	{counter(sctpPauses, sctpPausesIs, "short", "other"), func(s *sctp.Stats) float64 { return float64(s.AcceptErrors) }},
	{counter(sctpErrors, sctpErrorsIs, "call", "send"), func(s *sctp.Stats) float64 { return float64(s.SendErrors) }},
	{counter(sctpErrors, sctpErrorsIs, "call", "receive"), func(s *sctp.Stats) float64 { return float64(s.ReceiveErrors) }},
}
