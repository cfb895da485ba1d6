package config

import (
	"encoding"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"

	"github.com/sluice-lb/sluice/kernelmodes/queue"
	"github.com/sluice-lb/sluice/lb"
)

// cores returns how many processors the program may use, as it was at the first call: the
// program raises GOMAXPROCS afterwards, which must not look like a changed default.
var cores = sync.OnceValue(func() int { return runtime.GOMAXPROCS(0) })

// option is a flag. Parsing, --help and docs/reference/flags.md come from the options alone.
type option struct {
	name  string
	field string // of the file of --config that it stands for; empty: none
	value any    // where it is stored, with the default in it
	usage string // the word in backquotes stands for the value
}

// group is a part of the help text.
type group struct {
	title   string
	options []option
}

// flagSet returns the flags of a group.
func (g *group) flagSet() *pflag.FlagSet {
	f := newFlagSet()
	for _, o := range g.options {
		o.addTo(f)
	}
	return f
}

// groups returns all flags, bound to s, which has the defaults. Those that are ignored come last.
func (s *settings) groups() []group {
	return slices.Concat(s.sourceGroups(), s.dataPathGroups(), s.balancingGroups(), s.kernelGroups(), s.otherGroups(),
		[]group{{"Ignored, accepted for compatibility with kube-proxy", s.ignoredOptions()}})
}

func (s *settings) sourceGroups() []group {
	d := &s.Document
	c := &d.ClientConnection
	return []group{
		{"Services", []option{
			{"config", "", &s.File,
				"kube-proxy configuration `FILE` (KubeProxyConfiguration, v1alpha1). Its fields take " +
					"precedence over the flags that stand for them. When the file changes, Sluice upgrades or " +
					"exits"},
			{"manifests", "", (*stringArray)(&s.Source.Manifests),
				"`PATH` of a file or folder of Service, EndpointSlice and Endpoints manifests, YAML or JSON, " +
					"used in place of the Kubernetes API. Sluice watches it for changes; may be repeated"},
			{"service-proxy-name", "", &s.Source.ServiceProxyName,
				"serve only Services with the label service.kubernetes.io/service-proxy-name=`NAME`; empty " +
					"serves only Services without the label"},
		}},
		{"Kubernetes API", []option{
			{"kubeconfig", "clientConnection.kubeconfig", &c.Kubeconfig,
				"kubeconfig `FILE`; empty, without --master: the service account of the pod"},
			{"master", "", &s.Source.Master,
				"`URL` of the API server; overrides the kubeconfig's"},
			{"kube-api-content-type", "clientConnection.contentType", &c.ContentType, "content `TYPE` of requests to " +
				"the API server: application/vnd.kubernetes.protobuf or application/json"},
			{"kube-api-qps", "clientConnection.qps", &c.QPS,
				"`NUMBER` of requests per second to the API server; a negative number is no limit"},
			{"kube-api-burst", "clientConnection.burst", &c.Burst, "`NUMBER` of requests to the API server in a burst"},
			{"config-sync-period", "configSyncPeriod", &d.ConfigSyncPeriod.Duration,
				"`PERIOD` of full resyncs of the objects from the API server, above 0"},
		}},
		{"This node", []option{
			{"hostname-override", "hostnameOverride", &s.hostname,
				"`NAME` of this node in Node objects and EndpointSlices; empty: the host name"},
			{"node-zone", "", &s.Node.Zone,
				"`ZONE` of this node, for topology hints; empty: the label topology.kubernetes.io/zone of its Node"},
			{"node-pod-cidrs", "", &s.podCIDRs,
				"address `RANGES` of the pods on this node, for traffic policies; empty: by --detect-local-mode"},
			{"detect-local-mode", "detectLocalMode", (*string)(&d.DetectLocalMode),
				"`MODE` of detecting traffic from pods: ClusterCIDR (--cluster-cidr, else the Node), NodeCIDR (the " +
					"Node), BridgeInterface or InterfaceNamePrefix; empty: ClusterCIDR"},
			{"cluster-cidr", "clusterCIDR", &d.ClusterCIDR,
				"address `RANGES` of the pods in the cluster, one for each family"},
			{"pod-bridge-interface", "detectLocal.bridgeInterface", &d.DetectLocal.BridgeInterface,
				"`NAME` of the bridge of the pods, for BridgeInterface"},
			{"pod-interface-name-prefix", "detectLocal.interfaceNamePrefix", &d.DetectLocal.InterfaceNamePrefix,
				"`PREFIX` of the names of the pods' interfaces, for InterfaceNamePrefix"},
		}},
	}
}

func (s *settings) dataPathGroups() []group {
	d, u, p := &s.Document, &s.DataPath, &s.Process
	return []group{
		{"Data path", []option{
			{"proxy-mode", "mode", (*string)(&d.Mode),
				"default data path: `MODE` userspace (also when empty), queue, nftables, iptables, ipvs, auto " +
					"or winuserspace. auto chooses for each Service the cheapest of nftables, queue and userspace " +
					"that has all its policies (docs/data-paths.md). winuserspace needs no packet filter; on " +
					"Windows userspace and auto mean winuserspace. The annotation sluice.io/data-path of a " +
					"Service takes precedence. With --config, the flag applies if the file's mode is empty"},
			{"auto-stabilization", "", &u.Stabilization,
				"`DURATION` that a Service on data path auto waits before it moves to a cheaper path; 0 moves " +
					"it immediately. A move to a path with more policies never waits"},
			{"service-interface", "", &u.ServiceInterface,
				"`NAME` of the interface that gets Service addresses in mode winuserspace. Empty on Linux: " +
					"the dummy device sluice0, or lo if there are no dummy devices. Empty on Windows: the value " +
					"of INTERFACE_TO_ADD_SERVICE_IP, the interface of the Host Networking Service, or the " +
					"loopback interface"},
			{"bind-address", "bindAddress", &d.BindAddress,
				"`ADDRESS` of the proxy ports of its family, not a loopback address; 0.0.0.0 and :: stand for " +
					"all addresses of both families"},
			{"nodeport-addresses", "nodePortAddresses", &d.NodePortAddresses,
				"addresses of node ports: a list of `RANGES`, primary (--bind-address, else the Node's " +
					"addresses, else those of the default route), localhost and all. A family that is not listed " +
					"has all. Empty is all, or primary in mode nftables"},
			{"proxy-port-range", "portRange", &d.PortRange, "`RANGE` of proxy ports: a-b, a, or a+n; empty or 0: any"},
			{"udp-timeout", "udpIdleTimeout", &d.UDPIdleTimeout.Duration,
				"expire an idle UDP flow after this `DURATION`; its client may get another endpoint then. 0 " +
					"is 30s, and 120s after more than one exchange, as conntrack does; kube-proxy had 250ms"},
			{"udp-gso", "", &u.UDPGSO,
				"`WHEN` to send UDP datagrams of equal length in GSO batches (UDP_SEGMENT): on, off or auto. " +
					"auto is on, but off on Linux 6.17 and 7.0 to 7.1.4, which corrupt batches on some network " +
					"cards, unless no card segments UDP itself (ethtool -k: tx-udp-segmentation). Use off in a " +
					"virtual machine on such a host. true and false mean on and off"},
			{"sctp-engine", "", &u.SCTPEngine, "`ENGINE` for SCTP: socket (the kernel's SCTP), packet (raw sockets, " +
				"where the kernel has none), or auto"},
			{"packet-filter", "", &u.PacketFilter,
				"`FILTER` that steers traffic to the proxy ports: nftables (Linux 5.13 or later), iptables, " +
					"or auto. auto is iptables in mode iptables, else nftables if the kernel has it. The " +
					"--iptables-* flags apply to both"},
			{"max-service-share", "", &u.MaxServiceShare,
				"`PERCENT` of file descriptors, dials in flight and UDP flows that one Service may have while " +
					"no other Service has any, 1 to 100. Services that compete get equal parts, and a part stays " +
					"free; 100 is no limit"},
			{"max-client-share", "", &u.MaxClientShare,
				"`PERCENT` of the same resources that one client may have; a client is one IPv4 address or " +
					"one IPv6 /64"},
			{"loops", "", &u.Loops,
				"`NUMBER` of event loops, 1 to 1024; one per usable core by default"},
			{"busy-poll", "", &u.BusyPoll,
				"`DURATION` of busy polling of network cards before an idle loop sleeps, in whole " +
					"microseconds up to 10ms, like 50us; 0 disables. Needs Linux 6.9 and drivers with NAPI"},
		}},
		{"Upgrades and shutdown", []option{
			{"drain-timeout", "", &p.DrainTimeout,
				"longest `DURATION` that SIGTERM waits for open connections; the rest are reset then"},
			{"on-exit", "", (*string)(&p.OnExit),
				"`WHAT` happens to Services on SIGTERM. offload: the kernel forwards by nftables or iptables " +
					"rules until the next start; if it cannot, Sluice accepts connections while others drain. " +
					"refuse: connections are refused and rules stay for the next start. cleanup: refuse, and " +
					"remove all rules, sets and addresses, as --cleanup does"},
			{"cleanup-on-exit", "", &s.cleanupOnExit, "the same as --on-exit=cleanup"},
			{"handover-socket", "", &p.HandoverSocket,
				"`PATH` of a unix socket for upgrades: a new process takes over all connections of the " +
					"process that listens there. Only root may be able to write to its folder"},
			{"yes", "", &p.Yes,
				"take over at --handover-socket without asking, even if that removes Services; Sluice only " +
					"asks on a terminal"},
			{"pid-file", "", &p.PIDFile,
				"`PATH` of a file with the process id; --handover-socket is PATH.sock then, unless given"},
			{"api-socket", "", &p.APISocket,
				"`PATH` of the unix socket at which sluice status, services, endpoints, events, config and explain " +
					"ask the running process; empty: " + apiSocketName + " in the folder of --handover-socket, " +
					"or else " + DefaultAPISocket + "; none: no socket"},
			{"oom-score-adj", "oomScoreAdj", d.OOMScoreAdj,
				"OOM score adjustment of the process, a `NUMBER` from -1000 (never killed) to 1000 (killed first)"},
			{"windows-service", "windowsRunAsService", &d.WindowsRunAsService, "run as a Windows service"},
		}},
	}
}

func (s *settings) balancingGroups() []group {
	o := &s.DataPath.Outlier
	return []group{
		{"Policies of Services", []option{
			{"default-policy", "", defaultPolicy{&s.DataPath.Policies},
				"policy `KEY=VALUE` of all Services, such as scheduler=lc or hold=30s; may be repeated. The " +
					"annotation sluice.io/KEY of a Service takes precedence"},
		}},
		{"Outlier ejection, in user space", []option{
			{"outlier-consecutive-failures", "", &o.ConsecutiveFailures,
				"`NUMBER` of failures in a row that eject an endpoint, 2 or more. A failure is a dial that is " +
					"refused, times out or finds no route, or a connection that is reset before the first byte"},
			{"outlier-base-ejection-time", "", (*time.Duration)(&o.BaseEjectionTime),
				"`DURATION` of an ejection, multiplied by the number of ejections in a row. TCP endpoints are " +
					"tried every second after 1/30 of it and return when they accept; others return when it is " +
					"over"},
			{"outlier-max-ejection-percent", "", &o.MaxEjectionPercent,
				"`PERCENT` of a Service's endpoints that may be ejected, 0 to 100; the last one never is"},
			{"outlier-panic-threshold", "", &o.PanicThreshold,
				"ignore ejections when fewer than this `PERCENT` of a client's endpoints are left, 0 to 100; " +
					"0 ignores them only when all are ejected"},
			{"outlier-failure-percentage", "", &o.FailurePercentage,
				"`PERCENT` of failed connections in 10 s that ejects an endpoint, 0 to 100. It applies while 5 " +
					"endpoints of the Service have 50 connections each; 0 counts failures in a row only"},
		}},
	}
}

func (s *settings) kernelGroups() []group {
	t, v, k := &s.Document.IPTables, &s.Document.IPVS, &s.Document.Conntrack
	return []group{
		{"Forwarding by the kernel", []option{
			{"rules-lifetime", "", &s.Kernel.RulesLifetime,
				"`DURATION` after which rules match no more when no Sluice runs, so that another proxy can " +
					"take over; in whole seconds, 0 is unlimited. With iptables it needs ipset"},
			{"mark-mask", "", &s.markMask,
				"`MASK` of the packet mark bits that data path queue uses; its highest bit is for " +
					"transparent. At least 16 consecutive bits, without --iptables-masquerade-bit"},
			{"iptables-sync-period", "iptables.syncPeriod", &t.SyncPeriod.Duration,
				"`PERIOD` of verifying and repairing rules in every mode but ipvs, at least 100ms"},
			{"iptables-min-sync-period", "iptables.minSyncPeriod", &t.MinSyncPeriod.Duration,
				"shortest `PERIOD` between two rule syncs in every mode but ipvs, at most " +
					"--iptables-sync-period. Two changes after a quiet time are synced immediately, later ones " +
					"are batched. Endpoint changes in user space need no sync"},
			{"masquerade-all", "iptables.masqueradeAll", &t.MasqueradeAll, "masquerade all traffic to cluster IPs"},
			{"iptables-masquerade-bit", "iptables.masqueradeBit", t.MasqueradeBit,
				"`BIT` of the packet mark that requests masquerading, 0 to 31"},
			{"iptables-localhost-nodeports", "iptables.localhostNodePorts", t.LocalhostNodePorts,
				"serve node ports on 127.0.0.1 in mode iptables; false takes precedence over " +
					"--nodeport-addresses"},
			{"ipvs-sync-period", "ipvs.syncPeriod", &v.SyncPeriod.Duration,
				"`PERIOD` of verifying rules and virtual servers in mode ipvs, at least 100ms"},
			{"ipvs-min-sync-period", "ipvs.minSyncPeriod", &v.MinSyncPeriod.Duration,
				"shortest `PERIOD` between two syncs in mode ipvs, at most --ipvs-sync-period"},
			{"ipvs-scheduler", "ipvs.scheduler", &v.Scheduler, "default IPVS scheduler, a `NAME`; empty: rr"},
			{"ipvs-exclude-cidrs", "ipvs.excludeCIDRs", &v.ExcludeCIDRs,
				"address `RANGES` of virtual servers of other programs, which Sluice does not touch"},
			{"ipvs-strict-arp", "ipvs.strictARP", &v.StrictARP, "set arp_ignore to 1 and arp_announce to 2"},
			{"ipvs-tcp-timeout", "ipvs.tcpTimeout", &v.TCPTimeout.Duration,
				"IPVS timeout of idle TCP connections, a `DURATION`; 0: unchanged"},
			{"ipvs-tcpfin-timeout", "ipvs.tcpFinTimeout", &v.TCPFinTimeout.Duration,
				"IPVS timeout of TCP connections after a FIN, a `DURATION`; 0: unchanged"},
			{"ipvs-udp-timeout", "ipvs.udpTimeout", &v.UDPTimeout.Duration,
				"IPVS timeout of UDP flows, a `DURATION`; 0: unchanged"},
		}},
		{"Kernel settings", []option{
			{"conntrack-max-per-core", "conntrack.maxPerCore", k.MaxPerCore,
				"`NUMBER` of conntrack entries per core; 0: unchanged"},
			{"conntrack-min", "conntrack.min", k.Min,
				"least `NUMBER` of conntrack entries, for any number of cores"},
			{"conntrack-max", "conntrack.min", &s.conntrackMax,
				"`NUMBER` of conntrack entries, in place of both (kube-proxy until 1.10)"},
			{"conntrack-tcp-timeout-established", "conntrack.tcpEstablishedTimeout", &k.TCPEstablishedTimeout.Duration,
				"conntrack timeout of idle TCP connections, a `DURATION`; 0: unchanged"},
			{"conntrack-tcp-timeout-close-wait", "conntrack.tcpCloseWaitTimeout", &k.TCPCloseWaitTimeout.Duration,
				"conntrack timeout in state CLOSE_WAIT, a `DURATION`; 0: unchanged"},
			{"conntrack-udp-timeout", "conntrack.udpTimeout", &k.UDPTimeout.Duration,
				"conntrack timeout of UDP flows without a reply, a `DURATION`; 0: unchanged"},
			{"conntrack-udp-timeout-stream", "conntrack.udpStreamTimeout", &k.UDPStreamTimeout.Duration,
				"conntrack timeout of UDP flows with a reply, a `DURATION`; 0: unchanged"},
			{"conntrack-tcp-be-liberal", "conntrack.tcpBeLiberal", &k.TCPBeLiberal,
				"set nf_conntrack_tcp_be_liberal: TCP packets outside the window are not invalid"},
			{"conntrack-accounting", "", &s.Kernel.Conntrack.Accounting,
				"set nf_conntrack_acct and nf_conntrack_timestamp: the kernel counts packets and bytes of " +
					"what it forwards and notes the times, for the access log, sluice connections and sluice " +
					"services. false leaves both unchanged"},
		}},
	}
}

func (s *settings) otherGroups() []group {
	d, l, a := &s.Document, &s.Document.Logging, &s.Action
	return []group{
		{"Health and metrics", []option{
			{"healthz-bind-address", "healthzBindAddress", &d.HealthzBindAddress,
				"`ADDRESS`, with or without a port, of /healthz and /livez; empty: none"},
			{"metrics-bind-address", "metricsBindAddress", &d.MetricsBindAddress,
				"`ADDRESS`, with or without a port, of /metrics, /proxyMode, /configz, /statusz, /flagz, " +
					"/healthz and --page; empty: none"},
			{"page", "", (*string)(&s.Page),
				"`WHO` sees the page / and the API /v1 at the metrics address, which show Services and their " +
					"clients: auto (this host, by a loopback address), always (everyone who reaches the address) " +
					"or never"},
			{"healthz-port", "healthzBindAddress", &s.healthzPort,
				"`PORT` of --healthz-bind-address, if that has none; 0: no server"},
			{"metrics-port", "metricsBindAddress", &s.metricsPort,
				"`PORT` of --metrics-bind-address, if that has none; 0: no server"},
			{"bind-address-hard-fail", "bindAddressHardFail", &d.BindAddressHardFail,
				"exit if one of these addresses cannot be bound"},
			{"metrics-services", "", &s.Metrics.Services,
				"`NUMBER` of Service ports with their own sluice_service_... metrics; the others are one sum"},
			{"metrics-service-families", "", (*string)(&s.Metrics.Families),
				"`WHICH` sluice_service_... metrics a Service has: basic (choices, failures, bytes, active, " +
					"held and endpoints; others once they are not 0), or all from the start"},
			{"metrics-endpoints", "", &s.Metrics.Endpoints,
				"`NUMBER` of endpoints with their own sluice_endpoint_... metrics, three each; 0 is none"},
			{"metrics-histograms", "", &s.Metrics.Histograms,
				"`NUMBER` of Service ports with their own histograms of the time to connect, to the first " +
					"byte and to the end, 44 series and 4 kB per loop each. The first with connections get one; " +
					"the others are one sum"},
			{"profiling", "enableProfiling", &d.EnableProfiling,
				"serve /debug/pprof and /debug/flags/v on the metrics address"},
		}},
		{"Log", []option{
			{"access-log-file", "", &s.AccessLog.File,
				"`FILE` of the access log, - for standard output. It has a line for each connection and flow " +
					"that the policy access-log selects. A renamed file is opened " +
					"anew"},
			{"access-log-format", "", &s.AccessLog.Format, "`FORMAT` of the access log: json, or tcplog, HAProxy's"},
			{"access-log-sample", "", &s.AccessLog.Sample,
				"log one of `NUMBER` successful connections and flows where all are logged; errors are always " +
					"logged"},
			{"v", "logging.verbosity", logsapi.VerbosityLevelPflag(&l.Verbosity),
				"log `LEVEL`: 0 for operators, 1 and more for debugging"},
			{"logging-format", "logging.format", &l.Format, "`FORMAT` of the log: text or json"},
			{"logtostderr", "", &s.logToStderr,
				"log to standard error, and ignore --log-file and --log-dir"},
			{"alsologtostderr", "", &s.Log.AlsoStderr, "log to standard error as well as to a file"},
			{"log-file", "", &s.logFile, "log `FILE`, with --logtostderr=false"},
			{"log-dir", "", &s.logDir,
				"`FOLDER` of the log file sluice.log, with --logtostderr=false and without --log-file"},
			{"log-file-max-size", "", &s.Log.MaxSize, "size in `MB` at which the log file is truncated; 0: no limit"},
		}},
		{"Other", []option{
			{"write-config-to", "", &a.WriteConfigTo,
				"write the configuration in effect, with all defaults, to `FILE` and exit"},
			{"init-only", "", &a.InitOnly,
				"change settings that need full privileges (conntrack) and exit; the program may run with " +
					"CAP_NET_ADMIN and CAP_NET_RAW afterwards"},
			{"cleanup", "", &a.Cleanup,
				"remove all rules, sets and addresses of Sluice, and of kube-proxy's old userspace mode, and exit"},
			{"cleanup-iptables", "", &a.Cleanup, "old name of --cleanup"},
			{"version", "", (*versionForm)(&a.Version), "print the version and exit; raw prints build details too"},
			{"help", "", &a.Help, "print this help and exit"},
		}},
	}
}

// Why an option of kube-proxy is ignored.
const (
	noHNS      = "Sluice does not use Windows' Host Networking Service"
	noHeaders  = "log lines have one form"
	noBuffer   = "the log is not buffered"
	noSplit    = "the log has one destination"
	noCloud    = "Sluice has no cloud provider code"
	noMachines = "the identity of the machine is not used"
)

// ignoredOptions are the flags of kube-proxy 1.8 to 1.37 without a meaning here; the
// usage says why.
func (s *settings) ignoredOptions() []option {
	d, w, l := &s.Document, &s.Document.Winkernel, &s.Document.Logging.Options
	return []option{
		{"feature-gates", "featureGates", cliflag.NewMapStringBool(&d.FeatureGates), "Sluice has no feature gates"},
		{"show-hidden-metrics-for-version", "showHiddenMetricsForVersion",
			&d.ShowHiddenMetricsForVersion, "no metric is hidden"},
		{"boot-id-file", "", new("/proc/sys/kernel/random/boot_id"), noMachines},
		{"machine-id-file", "", new("/etc/machine-id,/var/lib/dbus/machine-id"), noMachines},
		{"cleanup-ipvs", "", new(true), "--cleanup removes everything of Sluice"},
		{"resource-container", "resourceContainer", new("/kube-proxy"), "cgroups are left to the service manager"},
		{"azure-container-registry-config", "", new(""), noCloud},
		{"google-json-key", "", new(""), noCloud},
		{"cloud-provider-gce-lb-src-cidrs", "", new(
			"130.211.0.0/22,209.85.152.0/22,209.85.204.0/22,35.191.0.0/16"), noCloud},
		{"cloud-provider-gce-l7lb-src-cidrs", "", new("130.211.0.0/22,35.191.0.0/16"), noCloud},
		{"source-vip", "winkernel.sourceVip", &w.SourceVip, noHNS},
		{"network-name", "winkernel.networkName", &w.NetworkName, noHNS},
		{"enable-dsr", "winkernel.enableDSR", &w.EnableDSR, noHNS},
		{"root-hnsendpoint-name", "winkernel.rootHnsEndpointName", new("cbr0"), noHNS},
		{"forward-healthcheck-vip", "winkernel.forwardHealthCheckVip", &w.ForwardHealthCheckVip, noHNS},
		{"vmodule", "logging.vmodule", logsapi.VModuleConfigurationPflag(&d.Logging.VModule),
			"all files have one log level"},
		{"log-flush-frequency", "logging.flushFrequency", &d.Logging.FlushFrequency.Duration.Duration, noBuffer},
		{"log-text-split-stream", "logging.options.text.splitStream", &l.Text.SplitStream, noSplit},
		{"log-text-info-buffer-size", "logging.options.text.infoBufferSize", &l.Text.InfoBufferSize, noBuffer},
		{"log-json-split-stream", "logging.options.json.splitStream", &l.JSON.SplitStream, noSplit},
		{"log-json-info-buffer-size", "logging.options.json.infoBufferSize", &l.JSON.InfoBufferSize, noBuffer},
		{"stderrthreshold", "", new("2"), noSplit},
		{"one-output", "", new(false), noSplit},
		{"log-backtrace-at", "", new(":0"), "the log has no stack traces"},
		{"add-dir-header", "", new(false), noHeaders},
		{"skip-headers", "", new(false), noHeaders},
		{"skip-log-headers", "", new(false), noHeaders},
	}
}

// stringArray is a list of which each use of the flag adds one.
type stringArray []string

// versionForm is the value of --version: true, false or raw.
type versionForm string

func (v *versionForm) String() string { return string(*v) }
func (v *versionForm) Type() string   { return "version" }

// Set implements pflag.Value.
func (v *versionForm) Set(s string) error {
	switch s {
	case "true", "raw":
		*v = versionForm(s)
	case "false":
		*v = ""
	default:
		return errors.New("give --version or --version=raw")
	}
	return nil
}

// declare makes settings with the defaults, and the flags bound to them.
func declare() (*settings, []group) {
	s := &settings{options: make(map[string]option), flags: newFlagSet()}
	s.Document.setDefaults()
	s.Document.FeatureGates = make(map[string]bool)
	s.DataPath.Loops, s.DataPath.PacketFilter = cores(), AutoFilter
	s.DataPath.Outlier = lb.DefaultOutlier
	s.DataPath.Stabilization = 30 * time.Second
	s.DataPath.MaxServiceShare, s.DataPath.MaxClientShare = 90, 97
	s.AccessLog = AccessLog{File: Stdout, Format: LogJSON, Sample: 1}
	s.Process.DrainTimeout, s.Process.OnExit = 30*time.Second, Offload
	s.Kernel.RulesLifetime, s.markMask = 10*time.Minute, fmt.Sprintf("%#x", uint32(queue.Mask))
	s.Metrics.Services, s.Metrics.Families = 1000, BasicFamilies
	s.Log.MaxSize, s.logToStderr = 1800, true
	s.healthzPort, s.metricsPort, s.Page = healthzPort, metricsPort, PageAuto
	groups := s.groups()
	s.ignored = groups[len(groups)-1].options
	for _, g := range groups {
		s.flags.AddFlagSet(g.flagSet())
		for _, o := range g.options {
			s.options[o.name] = o
		}
	}
	// Flags of klog have been written both ways.
	s.flags.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
	})
	return s, groups
}

// addTo adds the flag of an option, whose default is its present value.
func (o option) addTo(f *pflag.FlagSet) {
	short := map[string]string{"v": "v", "help": "h"}[o.name]
	switch p := o.value.(type) {
	case *string:
		f.StringVarP(p, o.name, short, *p, o.usage)
	case *bool:
		f.BoolVarP(p, o.name, short, *p, o.usage)
	case *int:
		f.IntVarP(p, o.name, short, *p, o.usage)
	case *int32:
		f.Int32VarP(p, o.name, short, *p, o.usage)
	case *uint64:
		f.Uint64VarP(p, o.name, short, *p, o.usage)
	case *float32:
		f.Float32VarP(p, o.name, short, *p, o.usage)
	case *time.Duration:
		f.DurationVarP(p, o.name, short, *p, o.usage)
	case *[]string:
		f.StringSliceVarP(p, o.name, short, *p, o.usage)
	case *stringArray:
		f.StringArrayVarP((*[]string)(p), o.name, short, *p, o.usage)
	case pflag.Value:
		f.VarP(p, o.name, short, o.usage)
	case encoding.TextUnmarshaler:
		f.TextVarP(p, o.name, short, o.value.(encoding.TextMarshaler), o.usage)
	default:
		panic(fmt.Sprintf("--%s: a flag cannot have the type %T", o.name, o.value))
	}
	if o.name == "version" || o.name == "udp-gso" { // which may be given without a value
		f.Lookup(o.name).NoOptDefVal = "true"
	}
}
