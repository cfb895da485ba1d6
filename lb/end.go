package lb

// End says how a connection has ended. Its String is the two letters of HAProxy's log. The first is who has ended it:
// the client (C), the endpoint (S), we for lack of something (R) or by a limit (P), an operator or a policy (K), since
// the endpoint has left (D), or a timeout of the client (c) or of the endpoint (s). The second is what it was at: in a
// queue (Q), connecting (C), passing data (D), or the last of it (L). "--" is as it should be. See the manual of
// HAProxy, 8.5. Where the kernel forwards and does not say who has ended it, "-" stands for who.
type End uint8

// The ends.
const (
	Normal          End = iota
	ClientConnect       // the client has left, or was reset, before an endpoint had accepted
	ClientQueue         // the same while it waited
	ClientData          // reset by the client
	ServerConnect       // no endpoint has accepted, or there is none
	ServerTimeout       // the same, the last one being silent
	QueueTimeout        // no endpoint in time, or no room at one
	QueueFull           // as many wait as may
	NotAllowed          // the client is not among the sources of the address
	OverConnections     // the service has as many as it may
	OverClient          // the client has as many as it may
	OverRate            // the client opens them faster than it may
	OverShare           // its Service, or it, had its share of what all have in common
	ServerData          // reset by the endpoint
	NoResource          // no port or descriptor
	Evicted             // a flow that made room for others
	EndpointLeft        // its endpoint has left the Service
	IdleEnd             // idle for too long
	ClientHalf          // the endpoint has gone on for too long after the client's end
	ServerHalf          // the client has gone on for too long after the endpoint's end
	TooOld              // it has lasted for too long
	Killed              // the process ends, or it leads back to us
	KilledInConnect     // the same before an endpoint had accepted
	Reset               // of what the kernel forwards: by one of them
	HalfTimeout         // the same: one has gone on for too long after the other's end
)

// ends is how many are counted: those of what user space relays.
const ends = Reset

// ending is what is said of an End: in the access log, by metrics, Events and the log, and in docs/troubleshoot.md.
type ending struct {
	letters, side, reason string // side: who has reset the connection
	happened, fix         string // for people; policies, flags and commands stand in backquotes
	refuses               bool   // a policy or a limit keeps the client from every endpoint
}

var endings = [...]ending{
	Normal: {letters: "--", happened: "it ended as it should"},
	ClientConnect: {"CC", "client", "connecting", "the client left before an endpoint accepted",
		"see how long connects take: `connect_ms`", false},
	ClientQueue: {"CQ", "client", "waiting", "the client left while it waited for room",
		"raise `max-endpoint-connections`, or add endpoints", false},
	ClientData: {"CD", "client", "established", "the client reset the connection", "ask the client", false},
	ServerConnect: {"SC", sluice, "no_endpoint", "no endpoint accepted, or there is none",
		"`sluice endpoints --unhealthy`", false},
	ServerTimeout: {"sC", sluice, "endpoint_silent", "no endpoint accepted, and the last one did not answer",
		"look for a firewall, or a host that is down", false},
	QueueTimeout: {"sQ", sluice, "wait_timeout", "the client waited for `queue-timeout` or `hold`",
		"add endpoints, or raise the time", true},
	QueueFull: {"PQ", sluice, "queue_full", "`max-pending-connections` clients wait already",
		"add endpoints, or raise the number", true},
	NotAllowed: {"PR", sluice, "not_allowed", "the client is not in `loadBalancerSourceRanges`",
		"add its network, or ignore it", true},
	OverConnections: {"PR", sluice, "max_connections", "the Service has `max-connections` connections already",
		"raise the number", true},
	OverClient: {"PR", sluice, "max_client_connections", "the client has `max-client-connections` connections already",
		"raise the number, or ask the client", true},
	OverRate: {"PR", sluice, "max_client_connection_rate",
		"the client opens more than `max-client-connection-rate` connections a second",
		"raise the number, or ask the client", true},
	OverShare: {"PR", sluice, "share", "the Service or the client has its share of descriptors or dials already",
		"raise `ulimit -n`, `--max-service-share` or `--max-client-share`", true},
	ServerData: {"SD", "endpoint", "established", "the endpoint reset the connection", "ask the server", false},
	NoResource: {"RC", sluice, "no_resource", "no port or descriptor was free", "`sluice status`; raise `ulimit -n`",
		true},
	Evicted: {"RD", sluice, "evicted", "a UDP flow made room for others", "`sluice status`; raise `ulimit -n`", false},
	EndpointLeft: {"DD", sluice, "endpoint_left",
		"the endpoint left the Service and `on-endpoint-removed` resets, or an operator drained it with --deadline",
		"use `on-endpoint-removed: keep`, or a longer time", false},
	IdleEnd: {"cD", sluice, "idle_timeout", "no byte came for `idle-timeout`", "raise it, or use keep-alive messages",
		false},
	ClientHalf: {"cL", sluice, "client_half_close_timeout",
		"the client had ended its stream, and the endpoint went on for `half-close-timeout`", "raise it", false},
	ServerHalf: {"sL", sluice, "server_half_close_timeout",
		"the endpoint had ended its stream, and the client went on for `half-close-timeout`", "raise it", false},
	TooOld: {"KD", sluice, "max_connection_duration", "it lasted for `max-connection-duration`", "raise it", false},
	Killed: {letters: "KD", side: sluice, reason: "killed", happened: "Sluice stopped"},
	KilledInConnect: {letters: "KC", side: sluice, reason: "killed_connecting",
		happened: "Sluice stopped before an endpoint accepted"},
	Reset: {letters: "-D", happened: "on a kernel path: one side reset it; conntrack does not say which"},
	HalfTimeout: {letters: "-L",
		happened: "on a kernel path: one side went on for too long; conntrack does not say which"},
}

const sluice = "sluice"

// String returns the two letters.
func (e End) String() string { return endings[int(e)%len(endings)].letters }

// Side returns who has reset the connection: client, endpoint or sluice; empty: no one.
func (e End) Side() string { return endings[int(e)%len(endings)].side }

// Reason returns why Sluice has, or what the connection was at when a side has.
func (e End) Reason() string { return endings[int(e)%len(endings)].reason }

// Happened returns what has happened, and Fix what to do about it, which may be nothing. What a reader can type stands
// in backquotes.
func (e End) Happened() string { return endings[int(e)%len(endings)].happened }

// Fix is described at Happened.
func (e End) Fix() string { return endings[int(e)%len(endings)].fix }

// Refuses reports whether a policy or a limit has kept the client from every endpoint.
func (e End) Refuses() bool { return endings[int(e)%len(endings)].refuses }

// Ends counts connections by how they have ended, but for Normal.
type Ends [ends]uint64
