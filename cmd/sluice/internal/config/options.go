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

	"github.com/sluice-lb/sluice/cmd/sluice/internal/accesslog"
	"github.com/sluice-lb/sluice/kernelmodes/queue"
	"github.com/sluice-lb/sluice/lb"
)

// cores returns how many processors the program may use, as it was at the first call: the
// program raises GOMAXPROCS afterwards, which must not look like a changed default.
var cores = sync.OnceValue(func() int { return runtime.GOMAXPROCS(0) })

// option is a flag. Parsing, --help and docs/flags.md come from the options alone.
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
				"configuration `FILE` of kube-proxy (KubeProxyConfiguration, v1alpha1); takes precedence over flags " +
					"that stand for one of its fields; when its meaning changes, Sluice upgrades or ends"},
			{"manifests", "", (*stringArray)(&s.Source.Manifests),
				"`PATH` of a file or folder of Service, EndpointSlice and Endpoints manifests, YAML or JSON, in " +
					"place of the Kubernetes API; watched for changes; may be repeated"},
			{"service-proxy-name", "", &s.Source.ServiceProxyName, "serve only Services with the label " +
				"service.kubernetes.io/service-proxy-name=`NAME`; empty: only those without the label"},
		}},
		{"Kubernetes API", []option{
			{"kubeconfig", "clientConnection.kubeconfig", &c.Kubeconfig,
				"kubeconfig `FILE`; empty, without --master: the service account of the pod"},
			{"master", "", &s.Source.Master, "`URL` of the API server; overrides the one in the kubeconfig"},
			{"kube-api-content-type", "clientConnection.contentType", &c.ContentType, "content `TYPE` of requests to " +
				"the API server: application/vnd.kubernetes.protobuf or application/json"},
			{"kube-api-qps", "clientConnection.qps", &c.QPS,
				"`NUMBER` of requests per second to the API server; below 0: no limit"},
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
			{"proxy-mode", "mode", (*string)(&d.Mode), "default data path: `MODE` userspace (also when empty), " +
				"queue, nftables, iptables, ipvs, auto (for each Service the cheapest of nftables, queue and " +
				"userspace that has all that it requests, and that flags for all Services request; see " +
				"docs/data-paths.md), or winuserspace, which needs no packet filter (and is what userspace and auto " +
				"mean on Windows); the annotation sluice.io/data-path of a Service takes precedence; " +
				"beside --config, what an empty mode of the file means"},
			{"auto-stabilization", "", &u.Stabilization, "`DURATION` for which nothing is to have requested the path " +
				"that a Service on data path auto is on before it moves to a cheaper one; to one that has more it " +
				"moves at once; 0: always at once"},
			{"service-interface", "", &u.ServiceInterface, "`NAME` of the interface that gets service addresses in " +
				"mode winuserspace; empty: on Linux the dummy device sluice0, or lo where there are none; on Windows " +
				"the value of INTERFACE_TO_ADD_SERVICE_IP, the interface of the Host Networking Service, or the " +
				"loopback interface"},
			{"bind-address", "bindAddress", &d.BindAddress, "`ADDRESS` of the proxy ports of its family; 0.0.0.0 and " +
				":: stand for all addresses of both families; not a loopback address"},
			{"nodeport-addresses", "nodePortAddresses", &d.NodePortAddresses,
				"addresses of node ports: a list of `RANGES`, primary (--bind-address, else those of the Node, else " +
					"those of the default route), localhost and all; a family for which nothing is given has all; " +
					"empty: all, or primary in mode nftables"},
			{"proxy-port-range", "portRange", &d.PortRange, "`RANGE` of proxy ports: a-b, a, or a+n; empty or 0: any"},
			{"udp-timeout", "udpIdleTimeout", &d.UDPIdleTimeout.Duration,
				"idle `DURATION` after which a UDP flow expires and its client may get another endpoint; 0: 30s, " +
					"and 120s once there was more than one exchange, as with conntrack; kube-proxy's was 250ms"},
			{"udp-gso", "", &u.UDPGSO, "`WHEN` to send UDP datagrams of equal length in GSO batches (UDP_SEGMENT): " +
				"on, where the kernel can; off; or auto: on, but off on Linux 7.0 to 7.1.4 and 6.17, which corrupt " +
				"batches on some network cards, unless no card segments UDP itself (ethtool -k: " +
				"tx-udp-segmentation); give off in a virtual machine whose host runs such a kernel; true and " +
				"false mean on and off"},
			{"sctp-engine", "", &u.SCTPEngine, "`ENGINE` for SCTP: socket (the kernel's SCTP), packet (raw sockets, " +
				"where the kernel has none), or auto"},
			{"packet-filter", "", &u.PacketFilter, "`FILTER` that steers to the proxy ports: nftables (Linux 5.13 or " +
				"later, without any program), iptables, or auto: iptables in its own mode, else nftables where the " +
				"kernel can; its --iptables-* flags hold for either"},
			{"max-service-share", "", &u.MaxServiceShare, "`PERCENT` of the file descriptors, the dials in flight " +
				"and the UDP flows that one Service may have while no other has any, 1 to 100; several that want all " +
				"get equal parts, and a part stays free; 100: no bound"},
			{"max-client-share", "", &u.MaxClientShare, "the same `PERCENT` for one client address, of IPv6 one /64"},
			{"loops", "", &u.Loops, "`NUMBER` of event loops, 1 to 1024; by default one per usable core"},
			{"busy-poll", "", &u.BusyPoll, "busy polling of network cards before an idle loop sleeps, a `DURATION` " +
				"in whole microseconds up to 10ms, like 50us; 0: off; needs Linux 6.9 and drivers with NAPI"},
		}},
		{"Upgrades and shutdown", []option{
			{"drain-timeout", "", &p.DrainTimeout,
				"longest `DURATION` of connection draining on SIGTERM; open connections are reset at the end"},
			{"on-exit", "", (*string)(&p.OnExit), "`WHAT` becomes of Services on SIGTERM: offload (the kernel " +
				"forwards by rules of mode nftables, or else iptables, until the next start; where it cannot, " +
				"connections are accepted while others drain), refuse (connections are refused, rules stay for the " +
				"next start), or cleanup (refused, and all rules, sets and addresses are removed, as --cleanup does)"},
			{"cleanup-on-exit", "", &s.cleanupOnExit, "the same as --on-exit=cleanup"},
			{"handover-socket", "", &p.HandoverSocket, "`PATH` of a unix socket for upgrades: a new process takes " +
				"over all connections from the one that listens there; only root may be able to write to its folder"},
			{"yes", "", &p.Yes, "take over at --handover-socket without asking, even if that removes Services; only a " +
				"terminal is asked"},
			{"pid-file", "", &p.PIDFile,
				"`PATH` of a file with the process id; the default of --handover-socket is then PATH.sock"},
			{"api-socket", "", &p.APISocket,
				"`PATH` of the unix socket at which sluice status, services, endpoints, events, config and explain " +
					"look at the running process; empty: " + apiSocketName + " in the folder of --handover-socket, " +
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
		{"Policies of Services, in user space", s.policyOptions()},
		{"Outlier ejection, in user space", []option{
			{"outlier-ejection", "", &o.Enabled, "give no new connections to endpoints that fail in a row while " +
				"others of the Service answer, until a trial connection succeeds; the annotation " +
				"sluice.io/outlier-ejection of a Service, true or false, takes precedence"},
			{"outlier-consecutive-failures", "", &o.ConsecutiveFailures, "`NUMBER` of failures in a row that eject " +
				"an endpoint: dials refused, timed out or unreachable, or connections reset before the first byte; 2 " +
				"or more"},
			{"outlier-base-ejection-time", "", (*time.Duration)(&o.BaseEjectionTime), "`DURATION` of an ejection, " +
				"times those in a row; TCP endpoints are tried every second after a thirtieth of it and return as " +
				"soon as they accept, others return when it is over"},
			{"outlier-max-ejection-time", "", (*time.Duration)(&o.MaxEjectionTime),
				"longest `DURATION` of an ejection"},
			{"outlier-max-ejection-jitter", "", (*time.Duration)(&o.MaxEjectionJitter),
				"`DURATION` of which a random part makes an ejection longer"},
			{"outlier-interval", "", (*time.Duration)(&o.Interval),
				"`DURATION` without an ejection that takes one off those in a row; what a client can bring about, a " +
					"reset or silence, counts once in it for each client address"},
			{"outlier-max-ejection-percent", "", &o.MaxEjectionPercent,
				"`PERCENT` of the endpoints of a Service that may be ejected, 0 to 100, but never the last"},
			{"outlier-panic-threshold", "", &o.PanicThreshold, "`PERCENT` of the endpoints that a client may get, 0 " +
				"to 100, below which ejections are ignored; 0: if all are ejected"},
			{"outlier-failure-percentage", "", &o.FailurePercentage, "`PERCENT` of the connections of an " +
				"--outlier-interval whose failure ejects an endpoint, 0 to 100; 0: only failures in a row do"},
			{"outlier-minimum-hosts", "", &o.FailureMinimumHosts, "`NUMBER` of endpoints of a Service that must " +
				"have had --outlier-request-volume connections in the interval for " +
				"--outlier-failure-percentage to count"},
			{"outlier-request-volume", "", &o.FailureRequestVolume,
				"`NUMBER` of connections: see --outlier-minimum-hosts"},
		}},
	}
}

func (s *settings) kernelGroups() []group {
	t, v, k := &s.Document.IPTables, &s.Document.IPVS, &s.Document.Conntrack
	return []group{
		{"Forwarding by the kernel", []option{
			{"rules-lifetime", "", &s.Kernel.RulesLifetime, "`DURATION` after which rules match nothing any more " +
				"when no Sluice runs, so that they do not stand in the way of another proxy; in whole seconds; " +
				"0: for ever; with iptables it needs ipset"},
			{"mark-mask", "", &s.markMask, "`MASK` of the bits of packet marks that data path queue numbers " +
				"endpoints in and whose highest bit transparent uses: at least 16 consecutive bits, without that of " +
				"--iptables-masquerade-bit"},
			{"iptables-sync-period", "iptables.syncPeriod", &t.SyncPeriod.Duration,
				"`PERIOD` of verifying and repairing rules in every mode but ipvs, at least 100ms"},
			{"iptables-min-sync-period", "iptables.minSyncPeriod", &t.MinSyncPeriod.Duration,
				"shortest `PERIOD` between two rule syncs in every mode but ipvs, at most --iptables-sync-period; " +
					"two changes after a quiet time are synced at once, later ones are deferred and batched; " +
					"endpoint changes in user space need no sync"},
			{"masquerade-all", "iptables.masqueradeAll", &t.MasqueradeAll, "masquerade all traffic to cluster IPs"},
			{"iptables-masquerade-bit", "iptables.masqueradeBit", t.MasqueradeBit,
				"`BIT` of the packet mark that requests masquerading, 0 to 31"},
			{"iptables-localhost-nodeports", "iptables.localhostNodePorts", t.LocalhostNodePorts,
				"serve node ports on 127.0.0.1 in mode iptables; false counts more than --nodeport-addresses"},
			{"ipvs-sync-period", "ipvs.syncPeriod", &v.SyncPeriod.Duration,
				"`PERIOD` of verifying rules and virtual servers in mode ipvs, at least 100ms"},
			{"ipvs-min-sync-period", "ipvs.minSyncPeriod", &v.MinSyncPeriod.Duration,
				"shortest `PERIOD` between two syncs in mode ipvs, at most --ipvs-sync-period"},
			{"ipvs-scheduler", "ipvs.scheduler", &v.Scheduler, "default IPVS scheduler, a `NAME`; empty: rr"},
			{"ipvs-exclude-cidrs", "ipvs.excludeCIDRs", &v.ExcludeCIDRs,
				"address `RANGES` of virtual servers of other programs, which are left alone"},
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
				"least `NUMBER` of conntrack entries, whatever the number of cores"},
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
				"set nf_conntrack_acct and nf_conntrack_timestamp: the kernel counts packets and bytes of what it " +
					"forwards, and notes when it began and ended, for --access-log, sluice connections and what " +
					"sluice services counts; false leaves both as they are"},
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
				"`ADDRESS`, with or without a port, of /metrics, /proxyMode, /configz, /healthz and --page; empty: " +
					"none"},
			{"page", "", (*string)(&s.Page), "who sees the page / and the API /v1 of the metrics address, which show " +
				"Services and their clients: `WHO` is auto (this host, by a loopback address, whatever address is " +
				"bound), always (all who reach the address) or never"},
			{"healthz-port", "healthzBindAddress", &s.healthzPort,
				"`PORT` of --healthz-bind-address, if that has none; 0: no server"},
			{"metrics-port", "metricsBindAddress", &s.metricsPort,
				"`PORT` of --metrics-bind-address, if that has none; 0: no server"},
			{"bind-address-hard-fail", "bindAddressHardFail", &d.BindAddressHardFail,
				"end if one of these addresses cannot be bound"},
			{"metrics-services", "", &s.Metrics.Services, "`NUMBER` of ports of Services with metrics " +
				"sluice_service_... of their own; those of others are one sum"},
			{"metrics-service-families", "", (*string)(&s.Metrics.Families), "`WHICH` metrics sluice_service_... a " +
				"Service has: basic (choices, failures, bytes, active, held and endpoints; others appear when they " +
				"are not 0 for the first time, and stay), or all from the start"},
			{"metrics-endpoints", "", &s.Metrics.Endpoints, "`NUMBER` of endpoints with metrics sluice_endpoint_... " +
				"of their own, seven each; 0: none"},
			{"metrics-histograms", "", &s.Metrics.Histograms, "`NUMBER` of ports of Services with histograms of " +
				"their own, 44 series each and 4 kB for each loop: of the time to connect, to the first byte and to " +
				"the end; the first that have connections, those of others are one sum"},
			{"profiling", "enableProfiling", &d.EnableProfiling,
				"serve /debug/pprof and /debug/flags/v on the metrics address"},
		}},
		{"Log", []option{
			{"access-log-file", "", &s.AccessLog.File, "`FILE` of the access log, - for standard output: a line for " +
				"each connection and flow that --access-log, or the annotation sluice.io/access-log, has logged; a " +
				"file that was renamed is opened anew"},
			{"access-log-format", "", &s.AccessLog.Format, "`FORMAT` of the access log: json, or tcplog, HAProxy's"},
			{"access-log-sample", "", &s.AccessLog.Sample, "where all are logged, log one of `NUMBER` connections " +
				"and flows, and each that has not ended as it should"},
			{"v", "logging.verbosity", logsapi.VerbosityLevelPflag(&l.Verbosity),
				"log `LEVEL`: 0 for operators, 1 and more for debugging"},
			{"logging-format", "logging.format", &l.Format, "`FORMAT` of the log: text or json"},
			{"logtostderr", "", &s.logToStderr, "log to standard error, whatever --log-file and --log-dir say"},
			{"alsologtostderr", "", &s.Log.AlsoStderr, "log to standard error as well as to a file"},
			{"log-file", "", &s.logFile, "log `FILE`, with --logtostderr=false"},
			{"log-dir", "", &s.logDir,
				"`FOLDER` of the log file sluice.log, with --logtostderr=false and without --log-file"},
			{"log-file-max-size", "", &s.Log.MaxSize, "size in `MB` at which the log file is truncated; 0: no limit"},
		}},
		{"Other", []option{
			{"write-config-to", "", &a.WriteConfigTo,
				"write the configuration in effect, with all defaults, to `FILE` and exit"},
			{"init-only", "", &a.InitOnly, "change settings that need full privileges (conntrack) and exit; the " +
				"program may then run with CAP_NET_ADMIN and CAP_NET_RAW"},
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

// ignoredOptions are the flags of kube-proxy 1.8 to 1.36 without a meaning here; the
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
	s.AccessLog = AccessLog{File: accesslog.Stdout, Format: accesslog.JSON, Sample: 1}
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
