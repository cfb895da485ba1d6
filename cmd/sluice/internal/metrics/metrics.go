package metrics

import (
	"net/http"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/agent"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/checks"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/kernelflows"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/manifest"
	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/netfilter/conntrack"
	"github.com/sluice-lb/sluice/kernelmodes/nftables"
	"github.com/sluice-lb/sluice/lb"
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

	Build   Build
	Serving func() time.Time // since when this process and those that it has taken over from serve; zero: not yet
	Detail  Detail

	Agent       func() agent.Status
	Manifests   func() manifest.Result // nil: Services come from elsewhere
	APIServer   func() Contact         // nil: the same
	Conntrack   func() (entries, limit int, err error)
	Descriptors *eventloop.Budget
	RefusedHTTP func() uint64 // connections

	AccessLog    func() (written, dropped uint64) // lines
	LogDropped   func() uint64                    // lines
	KernelEvents func() conntrack.EventStats
	Families     []Family                     // those that are served
	Services     func() []lb.Stats            // by service port
	Kernel       func() kernelflows.Counts    // what the kernel forwards of those
	Times        func(func(lb.ID, *lb.Times)) // of those, and of others; see lb.Balancer.Times
	Queue        func() Queue
	Outliers     func() lb.OutlierStats
	Checks       func() checks.Stats
	Events       func() (reported, dropped uint64)
	Conditions   func() map[string]int // what is rejected, ignored or leads nowhere, by reason
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
		s.gauge("sluice_build_info", "1, with the version, the commit and Go's version as labels.", 1,
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
	s.tcp(c.TCP())
	s.udp(c.UDP())
	s.sctp(c.SCTP())
	s.agent(c.Agent())
	if since := c.Serving(); !since.IsZero() {
		s.gauge("sluice_serving_start_time_seconds",
			"Start of the first process of this chain of hand-overs; process_start_time_seconds is the start of "+
				"this process.", seconds(since))
	}
	if engine, _ := c.SCTPEngine(); engine != sctp.Auto { // there is none before the first SCTP Service
		s.gauge("sluice_sctp_engine", "1 for the engine that forwards SCTP, by reason: requested (--sctp-engine) or "+
			"detected (what the kernel supports).", 1, "engine", engine.String(), "reason", reason(c.SCTPForced))
	}
	if c.PacketFilter != "" {
		s.gauge("sluice_packet_filter", "1 for the packet filter that steers, nftables or iptables, by reason: "+
			"requested (--packet-filter) or detected (what the kernel supports).", 1, "packet_filter", c.PacketFilter,
			"reason", reason(c.PacketFilterForced))
	}
	s.gauge("sluice_file_descriptors_used",
		"File descriptors of connections and flows, and of sockets of Services beyond the first "+
			"few.", float64(c.Descriptors.Used()))
	listened, _ := c.Descriptors.Listened()
	s.gauge("sluice_file_descriptors_listening",
		"File descriptors of sockets that listen for Services, without the one for steered TCP. At most three "+
			"quarters of the limit.", float64(listened))
	s.gauge("sluice_file_descriptors_limit", "File descriptors that connections, flows and sockets of Services may "+
		"hold; 0 for no limit.", float64(c.Descriptors.Limit))
	s.counter("sluice_file_descriptors_exhausted_total",
		"Connections, flows, pipes and sockets that got no file descriptor, because the limit or their share was "+
			"reached.", c.Descriptors.Exhausted())

	if entries, limit, err := c.Conntrack(); err == nil { // else the kernel has no table
		s.gauge("sluice_conntrack_entries", "Entries of the kernel's conntrack table in this network namespace.",
			float64(entries))
		s.gauge("sluice_conntrack_entries_limit", "Entries that the kernel's conntrack table may "+
			"have.", float64(limit))
	}
	s.counter("sluice_http_refused_connections_total",
		"Connections to health checks and metrics that were reset because there were too many, in all or of one "+
			"client.", c.RefusedHTTP())

	written, lost := c.AccessLog()
	s.counters("sluice_access_log_lines_total",
		"Lines of the access log, by result: written, or dropped because the file could not be written fast "+
			"enough or at all.", "result", []reading{{"written", written}, {"dropped", lost}})
	s.counter("sluice_log_dropped_total",
		"Lines of the log that were dropped because the output could not be written fast enough or at "+
			"all.", c.LogDropped())
	events := c.KernelEvents()
	s.counters("sluice_conntrack_events_total",
		"Events of conntrack for Services that the kernel forwards and the access log covers, by result: handled, "+
			"or lost because they came faster than Sluice reads.",
		"result", []reading{{"handled", events.Handled}, {"lost", events.Lost}})

	s.queue(c.Queue())
	s.outliers(c.Outliers())
	s.checks(c.Checks())
	for reason, n := range c.Conditions() {
		s.gauge("sluice_conditions",
			"Objects and settings that are rejected, ignored or lead nowhere now, by reason; sluice status lists "+
				"them.", float64(n), "reason", reason)
	}
	reported, dropped := c.Events()
	s.counter("sluice_events_total", "Events reported on the Node and on Services.", reported)
	s.counter("sluice_events_dropped_total",
		"Events dropped by the rate limit, or because the API server refused them or took none for two "+
			"minutes.", dropped)
	if c.Manifests != nil {
		s.manifests(c.Manifests())
	}
	if c.APIServer != nil {
		s.apiServer(c.APIServer())
	}
}

func (s scrape) apiServer(c Contact) {
	readable := 1.0
	if c.Lost {
		readable = 0
	}
	s.gauge("sluice_apiserver_readable",
		"1 while Services can be read from the API server; 0 while the last known ones are served.", readable)
	s.gauge("sluice_apiserver_last_contact_timestamp_seconds",
		"Time of the last answer or change from the API server; 0 is never. Without changes it answers at least "+
			"every ten minutes.", seconds(c.Last))
}

// reason is why something is in effect.
func reason(forced bool) string {
	if forced {
		return "requested"
	}
	return "detected"
}

func (s scrape) manifests(m manifest.Result) {
	s.gauge("sluice_manifest_files", "Manifest files found.", float64(m.Files))
	s.gauge("sluice_manifest_objects", "Objects of manifests applied.", float64(m.Objects.Len()))
	count := make(map[manifest.Error]int) // by file and kind
	for _, p := range m.Problems {
		count[manifest.Error{File: p.File, Kind: p.Kind}]++
	}
	for p, n := range count {
		s.gauge("sluice_manifest_problems",
			"Problems of manifest files whose last valid version is kept, by reason: "+
				"unreadable, syntax, invalid, conflict or limit. The log has each with its line.",
			float64(n), "file", p.File, "reason", string(p.Kind))
	}
}
