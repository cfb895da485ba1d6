package policies

import (
	"fmt"
	goruntime "runtime"
	"slices"
	"strings"
	"time"

	"github.com/sluice-lb/sluice/kernelmodes/ipvs"
	"github.com/sluice-lb/sluice/lb"
)

// paths are the data paths that can be requested, and auto, which chooses one of them.
var paths = []string{"userspace", "queue", "nftables", "iptables", "ipvs", "auto"}

// endpointLimit is the word for the policy that has clients wait.
const endpointLimit = "max-endpoint-connections"

// What policies are of use to.
var (
	streams   = []lb.Protocol{lb.TCP, lb.SCTP}
	tcpOnly   = []lb.Protocol{lb.TCP}
	datagrams = []lb.Protocol{lb.UDP}
)

// table is what there is. A policy is a field of lb.Policies, a line of its method Or, and a row here.
var table = []*Policy{
	{
		Word: "data-path", Default: "that of `--proxy-mode`", Flag: "proxy-mode",
		Means: "`PATH` that forwards the Service; auto chooses the cheapest path that has all the policies of the " +
			"Service",
		Kernel: "all",
		kind:   word{func(p *lb.Policies) *string { return &p.DataPath }, paths},
		lacks:  has,
	},
	{
		Word: "scheduler", Default: "rr",
		Means: "`NAME` of the algorithm that chooses endpoints: rr, lc (least connections), p2c (the better of " +
			"two), ewma (peak EWMA of connect times), random, sh (source hash) or maglev. A hash includes the " +
			"client's port with sh-port or mh-port after a comma",
		Kernel: "queue: all; nftables: rr; iptables: random; ipvs: its own",
		kind: text{func(p *lb.Policies) *string { return &p.Scheduler },
			"rr, lc, p2c, ewma, random, sh, maglev, or a scheduler of ipvs", checkScheduler},
		lacks: lacksScheduler,
	},
	{
		Word: "slow-start", Default: "0s",
		Means:   "Ramp up new endpoints over this `DURATION`, from 10 % of their share; 0 disables",
		Kernel:  "queue",
		kind:    duration{func(p *lb.Policies) *int64 { return &p.SlowStart }, time.Nanosecond, time.Hour, true},
		without: []string{"0s"}, lacks: chosen,
	},
	{
		Word: "outlier-ejection", Default: "true",
		Means:   "Whether an endpoint that fails several times in a row gets no new connections for a while",
		Kernel:  "queue",
		kind:    toggle{func(p *lb.Policies) *lb.Switch { return &p.OutlierEjection }},
		without: []string{"false"}, lacks: chosen,
	},
	{
		Word: readinessProbe, Alpha: true, Own: true, Kernel: "all",
		Means: "`PROBE` of endpoints, written as a container's readinessProbe in JSON or YAML: tcpSocket, httpGet, " +
			"grpc, dns: {name: cluster.local} or udp: {send: ping, expect: pong}",
		kind:  text{func(p *lb.Policies) *string { return &p.ReadinessProbe }, "a probe", anything},
		lacks: has,
	},
	{
		Word: "udp-responses", Alpha: true, Of: datagrams, Default: "0",
		Means: "`NUMBER` of datagrams that an endpoint sends as an answer, at least. An endpoint that sends none " +
			"has failed; 0 disables",
		Kernel: "queue",
		kind:   count{func(p *lb.Policies) *int32 { return &p.UDPResponses }, 1, 1000, true}, without: []string{"0"},
		lacks: chosen,
	},
	{
		Word: "hold", Keeps: true, Default: "0s",
		Means: "`DURATION` for which clients wait while no endpoint is ready; 0 refuses them immediately. A client " +
			"that closes or half-closes its connection gives its place back",
		kind:    duration{func(p *lb.Policies) *int64 { return &p.Hold }, time.Millisecond, time.Hour, true},
		without: []string{"0s"},
	},
	{
		Word: "hold-connections", With: "hold", Default: "1024",
		Means: "`NUMBER` of clients per Service port that can wait on this node; further clients are refused",
		kind:  count{func(p *lb.Policies) *int32 { return &p.HoldConnections }, 1, 1 << 20, false},
	},
	{
		Word: endpointLimit, Of: streams, Keeps: true, Default: "0",
		Means: "`NUMBER` of TCP or SCTP connections that a Service port has at one endpoint, from this node; 0 is " +
			"no limit. A client beyond the limit gets another endpoint, also with affinity. If no endpoint has " +
			"room, the client waits in a queue",
		kind:    count{func(p *lb.Policies) *int32 { return &p.MaxEndpointConnections }, 1, maxLimit, true},
		without: []string{"0"}, misses: missesLimit,
	},
	{
		Word: "max-pending-connections", Of: streams, With: endpointLimit, Default: "1024",
		Means: "`NUMBER` of clients per Service port that wait in the queue on this node, first come, first served. " +
			"Further clients are reset; 0 disables the queue",
		kind: count{func(p *lb.Policies) *int32 { return &p.MaxPendingConnections }, 1, 1 << 20, true},
	},
	{
		Word: "queue-timeout", Of: streams, With: endpointLimit, Default: "5s",
		Means: "`DURATION` that a client waits in the queue before it is reset. A client that leaves gives its " +
			"place back; a half-close counts as leaving on Linux only",
		kind: duration{func(p *lb.Policies) *int64 { return &p.QueueTimeout }, time.Millisecond, time.Hour, false},
	},
	{
		Word: "max-connections", Of: streams, Keeps: true, Default: "0",
		Means: "`NUMBER` of TCP or SCTP connections to a Service port on this node and in one address family, " +
			"waiting clients included. Further clients are reset; 0 is no limit",
		kind:    count{func(p *lb.Policies) *int32 { return &p.MaxConnections }, 1, maxLimit, true},
		without: []string{"0"}, misses: missesLimit,
	},
	{
		Word: "max-client-connections", Of: streams, Keeps: true, Default: "0",
		Means: "`NUMBER` of TCP or SCTP connections that one client has to a Service port on this node. A client is " +
			"one IPv4 address or one IPv6 /64. Further connections are reset; 0 is no limit. Connections that are " +
			"older than the limit do not count",
		kind:    count{func(p *lb.Policies) *int32 { return &p.MaxClientConnections }, 1, maxLimit, true},
		without: []string{"0"}, misses: missesLimit,
	},
	{
		Word: "max-client-connection-rate", Of: streams, Keeps: true, Default: "0",
		Means: "`NUMBER` of TCP or SCTP connections per second that one client opens to a Service port on this " +
			"node. A client is one IPv4 address or one IPv6 /64. The burst is one second's worth. Further " +
			"connections are reset; 0 is no limit",
		kind:    count{func(p *lb.Policies) *int32 { return &p.MaxClientConnectionRate }, 1, 1000000, true},
		without: []string{"0"}, misses: missesLimit,
	},
	{
		Word: "transparent", Default: "false", Kernel: "all",
		Means: "Whether endpoints on this node see the client's own address (TCP, by IP_TRANSPARENT). Clients that " +
			"are pods of the node, or the endpoint itself, keep the node's address",
		kind:    toggle{func(p *lb.Policies) *lb.Switch { return &p.Transparent }},
		without: []string{"false"}, lacks: has, misses: missesTransparent,
	},
	{
		Word: "proxy-protocol", Own: true, Default: "none", Binds: true,
		Means: "`VERSION` of the PROXY protocol that tells endpoints the client's address and the asked address: a " +
			"header before the first byte of a TCP connection, or v2 before each UDP datagram. It keeps the Service " +
			"in user space; SCTP has none",
		kind:   word{func(p *lb.Policies) *string { return &p.ProxyProtocol }, []string{"v1", "v2"}},
		misses: missesProxy,
	},
	{
		Word: "access-log", Default: "off", Kernel: "what conntrack knows",
		Means: "`WHICH` connections, associations and flows are logged when they end: off, errors, or all. See " +
			"--access-log-file; for the kernel's paths see --conntrack-accounting",
		kind:   word{func(p *lb.Policies) *string { return &p.AccessLog }, []string{"off", "errors", "all"}},
		lacks:  has,
		misses: missesLoops,
	},
	{
		Word: "on-endpoint-removed", Of: streams, Keeps: true, Default: "keep",
		Means: "`WHAT` happens to TCP and SCTP connections when their endpoint leaves the Service, or terminates " +
			"and no longer serves: keep lets them end on their own, reset resets them, reset-after:30s resets them " +
			"after that time. UDP flows always move to another endpoint. An endpoint has left after 0.5 s, or 1 s " +
			"if no other is ready, and never while all Services are without endpoints. A deleted Service keeps its " +
			"policy",
		kind: removal{}, without: []string{"keep"},
		misses: missesLoops,
	},
	{
		Word: "connect-timeout", Of: streams, Keeps: true, Default: "250ms",
		Means: "`DURATION` of the first attempt to connect to an endpoint (TCP, SCTP). Each further attempt has " +
			"twice as long, at most 1m",
		Kernel: "queue",
		kind: duration{func(p *lb.Policies) *int64 { return &p.ConnectTimeout }, 10 * time.Millisecond, time.Minute,
			false}, lacks: chosen,
	},
	{
		Word: "connect-attempts", Of: streams, Keeps: true, Default: "4",
		Means:  "`NUMBER` of attempts to connect a client (TCP, SCTP), each at another endpoint if there is one",
		Kernel: "queue",
		kind:   count{func(p *lb.Policies) *int32 { return &p.ConnectAttempts }, 1, 8, false}, lacks: chosen,
	},
	{
		Word: "retry-refused", Alpha: true, Of: tcpOnly, Keeps: true, Default: "false",
		Means: "Whether a client must get another endpoint when one refuses it. User space does so for every " +
			"Service",
		kind:    toggle{func(p *lb.Policies) *lb.Switch { return &p.RetryRefused }},
		without: []string{"false"},
	},
	{
		Word: "idle-timeout", Of: streams, Keeps: true, Default: "0s",
		Means: "Reset a TCP or SCTP connection after this `DURATION` without a byte in either direction, at most an " +
			"eighth later; 0 disables",
		kind:    duration{func(p *lb.Policies) *int64 { return &p.IdleTimeout }, 100 * time.Millisecond, month, true},
		without: []string{"0s"},
		misses:  missesLoops,
	},
	{
		Word: "udp-idle-timeout", Of: datagrams, Keeps: true, Flag: "udp-timeout",
		Default: "30s, and 120s after more than one exchange",
		Means:   "Expire an idle UDP flow after this `DURATION`; its client may get another endpoint then",
		kind:    duration{func(p *lb.Policies) *int64 { return &p.UDPIdleTimeout }, 100 * time.Millisecond, day, false},
	},
	{
		Word: "max-connection-duration", Of: streams, Keeps: true, Default: "0s",
		Means: "Reset a TCP or SCTP connection after this `DURATION`; 0 disables. A jitter, as in 1h/10%, shortens " +
			"it at random for each connection, by at most that percentage, so that clients do not all return " +
			"together",
		kind: age{duration{func(p *lb.Policies) *int64 { return &p.MaxConnectionDuration }, 100 * time.Millisecond,
			month, true}},
		without: []string{"0s"},
		misses:  missesLoops,
	},
	{
		Word: "half-close-timeout", Of: streams, Keeps: true, Default: "0s",
		Means: "Reset a connection this `DURATION` after its client or its endpoint has ended its stream, while the " +
			"other side goes on. Each byte starts the time anew; 0 disables",
		kind: duration{func(p *lb.Policies) *int64 { return &p.HalfCloseTimeout }, 100 * time.Millisecond, month,
			true},
		without: []string{"0s"},
		misses:  missesLoops,
	},
	{
		Word: "tcp-keepalive", Of: tcpOnly, Keeps: true, Default: "15s/15s, and net.ipv4.tcp_keepalive_probes",
		Means: "`IDLE/INTERVAL/PROBES` of the kernel's keep-alive probes towards both ends of a connection: the time " +
			"without a byte before the first probe, the time between two, and how many unanswered ones end the " +
			"connection. What is left out stays the default. Connections younger than 1s get no probes",
		kind:   keepalive{},
		misses: missesLoops,
	},
	{
		Word: "tcp-user-timeout", Of: tcpOnly, Keeps: true, Default: "0s",
		Means: "Reset a connection when bytes stay unacknowledged for this `DURATION` (TCP_USER_TIMEOUT); 0 uses " +
			"the kernel's limit",
		kind:    duration{func(p *lb.Policies) *int64 { return &p.UserTimeout }, time.Second, day, true},
		without: []string{"0s"},
		misses:  missesLoops,
	},
}

// missesTransparent: what user space lacks of the client's own address; the kernel's data paths change none.
func missesTransparent(s *lb.Service, path string) (reason string) {
	elsewhere := func(b lb.Backend) bool { return !b.Local }
	switch {
	case path != "userspace" || s.Requests().Transparent != lb.On:
		return ""
	case s.Protocol == lb.UDP || s.Protocol == lb.SCTP:
		return s.Protocol.String() + " in user space comes from this node's address"
	case slices.ContainsFunc(s.Backends, elsewhere):
		return "endpoints of other nodes see this node's address, since their answers do not pass it"
	}
	return ""
}

// missesLoops: what TCP lacks where goroutines serve it. SCTP is not served there.
func missesLoops(s *lb.Service, path string) (reason string) {
	if goruntime.GOOS == "linux" || path != "userspace" || s.Protocol != lb.TCP {
		return ""
	}
	return "user space does not have it on this system: it needs the event loops of Linux"
}

// missesLimit: what UDP lacks of limits.
func missesLimit(s *lb.Service, _ string) (reason string) {
	if s.Protocol == lb.UDP {
		return "UDP has flows and no connections, which --max-service-share and --max-client-share bound"
	}
	return ""
}

// missesProxy: what SCTP and UDP lack of the PROXY protocol.
func missesProxy(s *lb.Service, _ string) (reason string) {
	switch {
	case s.Requests().ProxyVersion(s.Protocol) != 0:
		return ""
	case s.Protocol == lb.UDP:
		return "UDP has version 2 only: request v2"
	}
	return s.Protocol.String() + " has no PROXY protocol: its endpoints see this node as the client"
}

const (
	maxLimit = 1 << 30

	day   = 24 * time.Hour
	month = 30 * day
)

// anything is for what [Read] checks otherwise.
func anything(string) error { return nil }

// has is for what every data path has.
func has(*lb.Policies, string) (instead, reason string) { return "", "" }

// chosen is for what comes of how this process chooses endpoints: for user space, and for data path queue. What has to
// wait, or to be admitted, is user space alone.
func chosen(_ *lb.Policies, path string) (instead, reason string) {
	if path == "queue" {
		return "", ""
	}
	return onlyUserspace(path)
}

// onlyUserspace is for what no data path of the kernel has.
func onlyUserspace(path string) (instead, reason string) {
	if path == "userspace" || path == "none" {
		return "", ""
	}
	return "none", fmt.Sprintf("data path %s does not have it: request data path userspace", path)
}

// checkScheduler returns what is wrong with a scheduler that neither user space nor any kernel has.
func checkScheduler(name string) error {
	const longest = 64
	if len(name) > longest {
		return fmt.Errorf("it is longer than %d bytes: use one of %s", longest, strings.Join(schedulers, ", "))
	}
	_, err := lb.ParseScheduler(name)
	if err == nil || ipvs.CheckScheduler(name) == nil {
		return nil
	}
	return fmt.Errorf("%w%s", err, meant(name, schedulers))
}

var schedulers = []string{"rr", "wrr", "lc", "wlc", "p2c", "ewma", "random", "sh", "mh", "maglev"}

// lacksScheduler: what ipvs lacks, of which kernels have more or less, its engine reports.
func lacksScheduler(p *lb.Policies, path string) (instead, reason string) {
	used, err := lb.ParseScheduler(p.Scheduler)
	switch path {
	case "userspace", "queue":
		if err != nil {
			return used.String(), err.Error()
		}
	case "nftables", "iptables":
		if err != nil || used.Algorithm != lb.RoundRobin && used.Algorithm != lb.Random {
			return map[string]string{"nftables": "rr", "iptables": "random"}[path],
				fmt.Sprintf("data path %s has no other", path)
		}
	}
	return "", ""
}
