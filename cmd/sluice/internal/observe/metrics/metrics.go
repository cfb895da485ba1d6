package metrics

import (
	"net/http"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/control/agent"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/control/checks"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/manifest"
	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/flows/report"
	"github.com/sluice-lb/sluice/kernelmodes/nftables"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
	"github.com/sluice-lb/sluice/redirect"
	"github.com/sluice-lb/sluice/sctp"
	"github.com/sluice-lb/sluice/tcp"
	"github.com/sluice-lb/sluice/udp"
)

// Sources are what is read at each scrape. All are needed but those that may be nil.
type Sources struct {
	TCP        func() tcp.Stats
	UDP        func() udp.Stats
	SCTP       func() sctp.Stats
	SCTPEngine func() (engine sctp.Engine, why string)
	SCTPForced bool // --sctp-engine requests an engine

	PacketFilter       string // nftables or iptables; empty: nothing is steered
	PacketFilterForced bool   // --packet-filter requests it

	Build  Build
	Detail Detail

	Agent       func() agent.Status
	Manifests   func() manifest.Result // nil: Services come from elsewhere
	APIServer   func() Contact         // nil: the same
	Conntrack   func() (entries, limit int, err error)
	Descriptors *eventloop.Budget
	RefusedHTTP func() uint64 // connections

	AccessLog  func() (written, dropped uint64)   // lines
	LogDropped func() uint64                      // lines
	LostEvents func() uint64                      // of conntrack
	Families   []Family                           // that Sluice serves
	Services   func() []balancer.Stats            // by service port
	Kernel     func() report.Counts               // what the kernel forwards of those
	Times      func(func(lb.ID, *balancer.Times)) // of those, and of others; see balancer.Counters.Times
	Queue      func() Queue
	Outliers   func() balancer.OutlierStats
	Checks     func() checks.Stats
	Events     func() (reported, dropped uint64)
	Conditions func() map[string]int // what is rejected, ignored or leads nowhere, by reason
}

// Build says what is running.
type Build struct {
	Version string
	Commit  string // empty: unknown
}

// Contact is with the API server.
type Contact struct {
	Last time.Time // when it has answered; zero: never
	Lost bool      // it cannot be read now
}

// Family is an address family and who steers it.
type Family struct {
	Name     string                // IPv4 or IPv6
	Stats    func() redirect.Stats // nil: no rules are written for it
	NFTables bool                  // those are of nftables
	Stale    func() uint64         // deleted conntrack entries; with Stats

	Engine func() (nftables.Stats, bool) // nil or false: none forwards Services of it
}

// Metrics is a registry with all series of the program.
type Metrics struct {
	registry *prometheus.Registry
	started  time.Time
	*kubeProxy
}

// New makes the registry.
func New(sources Sources) *Metrics {
	r := prometheus.NewRegistry()
	m := &Metrics{registry: r, started: time.Now(), kubeProxy: newKubeProxy(r, sources.Agent, sources.Families)}
	read := func(out chan<- prometheus.Metric) {
		s := scrape(out)
		s.gauge("sluice_build_info", "[ALPHA] 1, with the version, the commit and Go's version as labels.", 1,
			"version", sources.Build.Version, "revision", sources.Build.Commit, "goversion", runtime.Version())
		s.sources(&sources)
	}
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prometheus.CollectorFunc(read),
		prometheus.CollectorFunc(newServices(sources.Services, sources.Kernel, sources.Detail).collect),
		prometheus.CollectorFunc(func(out chan<- prometheus.Metric) { collectTimes(out, sources.Times) }))
	registerClient(r)
	return m
}

// Register adds series of a part of the program that collects its own. It is for the
// start; a name that is taken already is a mistake of the program, and a panic.
func (m *Metrics) Register(c prometheus.Collector) { m.registry.MustRegister(c) }

// Handler serves the series.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Registry: m.registry})
}

// sources reads every source once.
func (s scrape) sources(c *Sources) {
	tcp, sctpStats, status, queue, probes := c.TCP(), c.SCTP(), c.Agent(), c.Queue(), c.Checks()
	s.tcp(tcp)
	s.udp(c.UDP())
	s.sctp(sctpStats)
	s.agent(status)
	s.queue(queue)
	s.host(c)
	s.excluded(status, probes, c.Outliers())
	s.counters("sluice_deferred_total", "[ALPHA] Work that was put off, by what it is: tcp_dial or sctp_dial (file "+
		"descriptors, local ports or memory of this node were exhausted), probe (its namespace had its share of the "+
		"probes in flight), rule_sync (--iptables-min-sync-period, --ipvs-min-sync-period) or data_path_move "+
		"(--auto-stabilization).", "work", []reading{{"tcp_dial", tcp.Shortages}, {"sctp_dial", sctpStats.Shortages},
		{"probe", probes.Postponed}, {"rule_sync", status.Deferred}, {"data_path_move", status.Unmoved}})
	_, lines := c.AccessLog()
	_, events := c.Events()
	s.counters("sluice_dropped_records_total", "[ALPHA] Records that came faster than they could be written or read, "+
		"by kind: log or access_log (lines), event (of the Node and of Services; also if the API server refused it) "+
		"or conntrack_event (Sluice reads the table instead, or the access log lacks the flow).", "kind", []reading{
		{"log", c.LogDropped()}, {"access_log", lines}, {"event", events},
		{"conntrack_event", c.LostEvents()}})
	if engine, _ := c.SCTPEngine(); engine != sctp.Auto { // there is none before the first SCTP Service
		s.setting("sctp_engine", engine.String(), c.SCTPForced)
	}
	if c.PacketFilter != "" {
		s.setting("packet_filter", c.PacketFilter, c.PacketFilterForced)
	}
	s.counter("sluice_http_refused_connections_total", "[BETA] Connections to health checks and metrics that were "+
		"reset because there were too many, in all or of one client.", c.RefusedHTTP())
	for reason, n := range c.Conditions() {
		s.gauge("sluice_conditions", "[BETA] Objects and settings that are rejected, ignored or lead nowhere now, by "+
			"reason; sluice status lists them.", float64(n), "reason", reason)
	}
	if c.Manifests != nil {
		s.manifests(c.Manifests())
	}
	if c.APIServer != nil {
		s.apiServer(c.APIServer())
	}
}

// host sends what Sluice shares with the rest of the host.
func (s scrape) host(c *Sources) {
	s.gauge("sluice_file_descriptors_used", "[BETA] File descriptors of connections and flows, and of sockets of "+
		"Services beyond the first few.", float64(c.Descriptors.Used()))
	s.gauge("sluice_file_descriptors_limit", "[BETA] File descriptors that connections, flows and sockets of Services "+
		"may hold; 0 for no limit.", float64(c.Descriptors.Limit))
	s.counter("sluice_file_descriptors_exhausted_total", "[BETA] Connections, flows, pipes and sockets that got no "+
		"file descriptor, because the limit or their share was reached.", c.Descriptors.Exhausted())
	if entries, limit, err := c.Conntrack(); err == nil { // else the kernel has no table
		s.gauge("sluice_conntrack_entries", "[BETA] Entries of the kernel's conntrack table in this network namespace.",
			float64(entries))
		s.gauge("sluice_conntrack_entries_limit", "[BETA] Entries that the kernel's conntrack table may have.",
			float64(limit))
	}
}

func (s scrape) setting(name, value string, requested bool) {
	s.gauge("sluice_setting_info", "[ALPHA] 1 for what is in effect: the packet_filter that steers (nftables or "+
		"iptables) and the sctp_engine that forwards SCTP, by reason: requested (by a flag) or detected (what the "+
		"kernel supports).", 1, "setting", name, "value", value, "reason", reason(requested))
}

func (s scrape) apiServer(c Contact) {
	readable := 1.0
	if c.Lost {
		readable = 0
	}
	s.gauge("sluice_apiserver_readable",
		"[BETA] 1 while Services can be read from the API server; 0 while the last known ones are served.", readable)
	s.gauge("sluice_apiserver_last_contact_timestamp_seconds",
		"[BETA] Time of the last answer or change from the API server; 0 is never. Without changes it answers at "+
			"least every ten minutes.", seconds(c.Last))
}

// reason is why something is in effect.
func reason(forced bool) string {
	if forced {
		return "requested"
	}
	return "detected"
}

func (s scrape) manifests(m manifest.Result) {
	count := make(map[manifest.Error]int) // by file and kind
	for _, p := range m.Problems {
		count[manifest.Error{File: p.File, Kind: p.Kind}]++
	}
	for p, n := range count {
		s.gauge("sluice_manifest_problems",
			"[ALPHA] Problems of manifest files whose last valid version is kept, by reason: "+
				"unreadable, syntax, invalid, conflict or limit. The log has each with its line.",
			float64(n), "file", p.File, "reason", string(p.Kind))
	}
}
