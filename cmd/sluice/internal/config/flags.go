package config

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/pflag"
	logsapi "k8s.io/component-base/logs/api/v1"

	"github.com/sluice-lb/sluice/sctp"
)

// cores is how many the program may use, before it tells Go's runtime anything else.
var cores = runtime.GOMAXPROCS(0)

// settings is what flags are bound to, before any check.
type settings struct {
	Config // flags that only Sluice has, and what needs no check

	flags *pflag.FlagSet
	doc   Document // flags that stand for a field of the file; then the file

	hostname                 string // --hostname-override, which counts beside a file
	podCIDRs                 []string
	conntrackMax             int32
	healthzPort, metricsPort int32
	logToStderr              bool
	logFile, logDir          string
}

// group is a part of the help text.
type group struct {
	title string
	flags *pflag.FlagSet
}

// Parse reads the arguments, without the program's name, and the file of --config
// if they name one. The error names the flag or field and the fix, one line a
// mistake.
func Parse(args []string) (Config, error) {
	s, _ := declare()
	if err := s.flags.Parse(args); err != nil {
		return s.Config, fmt.Errorf("read flags: %w%s (see --help)", err, s.meant(err))
	}
	if s.Action.Help || s.Action.Version != "" {
		return s.Config, nil
	}
	for _, rest := range s.flags.Args() {
		if rest != "" { // as "$EXTRA_ARGS" leaves it
			return s.Config, fmt.Errorf("read flags: %q is not a flag: Sluice takes no other arguments (see --help)", rest)
		}
	}
	if err := s.complete(); err != nil {
		return s.Config, err
	}
	return s.Config, s.check()
}

// meant returns a guess at what was meant by a flag that does not exist, if one
// is at hand.
func (s *settings) meant(err error) string {
	var missing *pflag.NotExistError
	if !errors.As(err, &missing) {
		return ""
	}
	name, best := missing.GetSpecifiedName(), ""
	least := min(3, len(name)/3) // more mistakes than this make another word
	s.flags.VisitAll(func(f *pflag.Flag) {
		if d := distance(name, f.Name); d <= least {
			least, best = d-1, f.Name
		}
	})
	if best == "" {
		return ""
	}
	return ": did you mean --" + best + "?"
}

// distance counts the letters to put in, take out or change to make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}

// complete puts together what flags and the file say. The file counts, but for the
// few flags that kube-proxy has count beside it and those that only Sluice has.
func (s *settings) complete() error {
	if s.File == "" {
		s.completeFlags()
		s.warnOfIgnored()
		return nil
	}
	doc, warnings, err := readDocument(s.File)
	if err != nil {
		return err
	}
	s.Warnings = append(s.Warnings, warnings...)
	s.keepLogging(&doc)
	s.doc = doc
	if ignored := s.ignoredBesideFile(); len(ignored) > 0 {
		s.Warnings = append(s.Warnings, fmt.Sprintf("--config is given, so that these flags do not count: %s; write them into %s", strings.Join(ignored, ", "), s.File))
	}
	s.warnOfIgnored()
	return nil
}

// completeFlags works out flags that are more than one field.
func (s *settings) completeFlags() {
	s.doc.HealthzBindAddress = s.address("healthz", s.doc.HealthzBindAddress, s.healthzPort)
	s.doc.MetricsBindAddress = s.address("metrics", s.doc.MetricsBindAddress, s.metricsPort)
	if t := &s.doc.IPTables; !s.flags.Changed("iptables-min-sync-period") {
		t.MinSyncPeriod.Duration = min(t.MinSyncPeriod.Duration, t.SyncPeriod.Duration)
	}
	s.doc.NFTables.SyncPeriod, s.doc.NFTables.MinSyncPeriod = s.doc.IPTables.SyncPeriod, s.doc.IPTables.MinSyncPeriod
	s.doc.NFTables.MasqueradeAll = s.doc.IPTables.MasqueradeAll
	if s.conntrackMax > 0 { // the least number is the only one, whatever there is per core
		one := int32(1)
		s.doc.Conntrack.MaxPerCore, s.doc.Conntrack.Min = &one, &s.conntrackMax
	}
}

// address works out --NAME-bind-address and --NAME-port. The port counts where the
// address has none, or is not given; 0 means no server.
func (s *settings) address(name, addr string, port int32) string {
	if s.flags.Changed(name + "-port") {
		if port == 0 {
			return ""
		}
		if host, _, ok := strings.Cut(addr, ":"); ok && !s.flags.Changed(name+"-bind-address") {
			addr = host
		}
	}
	return withPort(addr, port)
}

// keepLogging has the flags of the log count beside the file, as in kube-proxy.
func (s *settings) keepLogging(doc *Document) {
	from, to := &s.doc.Logging, &doc.Logging
	for flag, keep := range map[string]func(){
		"v":                         func() { to.Verbosity = from.Verbosity },
		"logging-format":            func() { to.Format = from.Format },
		"log-flush-frequency":       func() { to.FlushFrequency = from.FlushFrequency },
		"vmodule":                   func() { to.VModule = append(from.VModule, to.VModule...) },
		"log-text-split-stream":     func() { to.Options.Text.SplitStream = from.Options.Text.SplitStream },
		"log-text-info-buffer-size": func() { to.Options.Text.InfoBufferSize = from.Options.Text.InfoBufferSize },
		"log-json-split-stream":     func() { to.Options.JSON.SplitStream = from.Options.JSON.SplitStream },
		"log-json-info-buffer-size": func() { to.Options.JSON.InfoBufferSize = from.Options.JSON.InfoBufferSize },
	} {
		if s.flags.Changed(flag) {
			keep()
		}
	}
}

// besideFile are the flags that count beside --config; those of the log and those
// that mean nothing do, too.
var besideFile = []string{
	"config", "write-config-to", "cleanup", "cleanup-iptables", "init-only", "master", "hostname-override", // as in kube-proxy
	"manifests", "service-proxy-name", "node-zone", "node-pod-cidrs", "sctp-engine", "loops", "busy-poll", "udp-gso", "drain-timeout", "cleanup-on-exit", "handover-socket", "pid-file", "service-interface", // have no field
}

// declare makes the flags of every group, bound to settings that have the defaults.
func declare() (*settings, []group) {
	s := new(settings)
	s.doc.setDefaults()
	s.doc.FeatureGates = make(map[string]bool)
	var groups []group
	add := func(title string, declare func(*pflag.FlagSet)) {
		f := pflag.NewFlagSet(title, pflag.ContinueOnError)
		f.SortFlags = false
		declare(f)
		groups = append(groups, group{title, f})
	}
	add("Services", s.declareSources)
	add("Kubernetes API", s.declareAPI)
	add("This node", s.declareNode)
	add("Data path", s.declareDataPath)
	add("Forwarding by the kernel", s.declareKernelModes)
	add("Kernel", s.declareKernel)
	add("Health and metrics", s.declareHTTP)
	add("Log", s.declareLog)
	add("Other", s.declareOther)
	add("Without a meaning here, accepted for the sake of command lines of kube-proxy", s.declareIgnored)

	s.flags = pflag.NewFlagSet("sluice", pflag.ContinueOnError)
	s.flags.SetOutput(io.Discard) // the caller prints the error, once
	for _, g := range groups {
		s.flags.AddFlagSet(g.flags)
	}
	// Flags of klog have been written both ways.
	s.flags.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
	})
	return s, groups
}

func (s *settings) declareSources(f *pflag.FlagSet) {
	f.StringVar(&s.File, "config", "", "`FILE` of kube-proxy's configuration (KubeProxyConfiguration, v1alpha1); flags that stand for one of its fields then do not count; when its meaning changes, Sluice ends so that it can be started again")
	f.StringArrayVar(&s.Source.Manifests, "manifests", nil, "`PATH` of a file or folder of Service, EndpointSlice and Endpoints manifests, YAML or JSON; watched for changes; may be given several times; in place of the Kubernetes API")
	f.StringVar(&s.Source.ServiceProxyName, "service-proxy-name", "", "serve only Services whose label service.kubernetes.io/service-proxy-name is `NAME`; empty: only those without the label")
}

func (s *settings) declareAPI(f *pflag.FlagSet) {
	c := &s.doc.ClientConnection
	f.StringVar(&c.Kubeconfig, "kubeconfig", "", "`FILE` that says how to reach the Kubernetes API and as whom; empty without --master: as the service account of the pod that Sluice runs in")
	f.StringVar(&s.Source.API.Master, "master", "", "`URL` of the API server, in place of the one in the kubeconfig")
	f.StringVar(&c.ContentType, "kube-api-content-type", c.ContentType, "`TYPE` of what is asked of the API server: application/vnd.kubernetes.protobuf or application/json")
	f.Float32Var(&c.QPS, "kube-api-qps", c.QPS, "`NUMBER` of requests to the API server per second; below 0 means no limit")
	f.Int32Var(&c.Burst, "kube-api-burst", c.Burst, "`NUMBER` of requests to the API server at once")
	f.DurationVar(&s.doc.ConfigSyncPeriod.Duration, "config-sync-period", s.doc.ConfigSyncPeriod.Duration, "`PERIOD` in which everything from the API server is looked at again, above 0")
}

func (s *settings) declareNode(f *pflag.FlagSet) {
	f.StringVar(&s.hostname, "hostname-override", "", "`NAME` of this node in Node objects and EndpointSlices; empty: the host's name")
	f.StringVar(&s.Node.Zone, "node-zone", "", "`ZONE` of this node, for topology hints; empty: the label topology.kubernetes.io/zone of its Node object")
	f.StringSliceVar(&s.podCIDRs, "node-pod-cidrs", nil, "address `RANGES` of this node's pods, for traffic policies; empty: as --detect-local-mode says")
	f.StringVar((*string)(&s.doc.DetectLocalMode), "detect-local-mode", "", "`MODE` of telling the pods' traffic: ClusterCIDR (--cluster-cidr, else the Node object), NodeCIDR (the Node object), BridgeInterface or InterfaceNamePrefix; empty: ClusterCIDR")
	f.StringVar(&s.doc.ClusterCIDR, "cluster-cidr", "", "address `RANGES` of the pods in the cluster, one or one for each family with a comma")
	f.StringVar(&s.doc.DetectLocal.BridgeInterface, "pod-bridge-interface", "", "`NAME` of the bridge that pods' traffic comes from, for BridgeInterface")
	f.StringVar(&s.doc.DetectLocal.InterfaceNamePrefix, "pod-interface-name-prefix", "", "`PREFIX` of the names of pods' interfaces, for InterfaceNamePrefix")
}

func (s *settings) declareDataPath(f *pflag.FlagSet) {
	f.StringVar((*string)(&s.doc.Mode), "proxy-mode", "", "`MODE` of forwarding: userspace, which empty means too, or iptables, ipvs, or winuserspace, without any rule, listening on service addresses that are put on an interface, which userspace means on Windows; the annotation sluice.io/data-path of a Service goes before it")
	f.StringVar(&s.DataPath.ServiceInterface, "service-interface", "", "`NAME` of the interface that service addresses are put on in mode winuserspace; empty: on Linux the device sluice0, which is made, or lo if there are no dummy devices; on Windows what INTERFACE_TO_ADD_SERVICE_IP names, or the interface of the Host Networking Service, or the loopback interface")
	f.StringVar(&s.doc.BindAddress, "bind-address", "0.0.0.0", "`ADDRESS` on which proxy ports of its family listen; 0.0.0.0 and :: mean all, in both families; not a loopback address")
	f.StringSliceVar(&s.doc.NodePortAddresses, "nodeport-addresses", nil, "where node ports listen, a list of address `RANGES` and of the words primary, localhost and all; empty means all")
	f.StringVar(&s.doc.PortRange, "proxy-port-range", "", "`RANGE` of ports to listen on: a-b, a, or a+n (a to a+n); empty or 0 lets the kernel choose")
	f.DurationVar(&s.doc.UDPIdleTimeout.Duration, "udp-timeout", s.doc.UDPIdleTimeout.Duration, "idle `DURATION` after which a UDP flow ends and its client may be sent to another endpoint")
	f.TextVar(&s.DataPath.SCTPEngine, "sctp-engine", sctp.Auto, "`ENGINE` that forwards SCTP: socket (the kernel's SCTP), packet (raw sockets, where the kernel has none), or auto, by what the kernel has")
	f.IntVar(&s.DataPath.Loops, "loops", cores, "`NUMBER` of event loops, 1 to 1024; the default is one per usable core")
	f.DurationVar(&s.DataPath.BusyPoll, "busy-poll", 0, "how long a loop that has nothing to do polls the network cards' queues before it sleeps, a `DURATION` in whole microseconds up to 10ms, like 50us; 0 is never; needs Linux 6.9, and cards whose drivers can be polled")
	f.BoolVar(&s.DataPath.UDPGSO, "udp-gso", true, "send UDP datagrams of equal length by one call where the kernel can (UDP_SEGMENT); "+
		"never on Linux 7.0 to 7.1.4, which corrupt them on some network cards")
	f.DurationVar(&s.Process.DrainTimeout, "drain-timeout", 30*time.Second, "longest `DURATION` to wait on SIGTERM for open connections; what is left then is reset")
	f.BoolVar(&s.Process.CleanupOnExit, "cleanup-on-exit", false, "remove every trace from the kernel on SIGTERM too, as --cleanup does; otherwise the rules stay for the next start")
	f.StringVar(&s.Process.HandoverSocket, "handover-socket", "", "`PATH` of a unix socket: a start takes over from the process that has it, with every connection; sluice upgrade asks there; nobody else may be able to write to its folder")
	f.StringVar(&s.Process.PIDFile, "pid-file", "", "`PATH` of a file for the number of the process that serves; without --handover-socket that is PATH.sock")
}

func (s *settings) declareKernelModes(f *pflag.FlagSet) {
	t, v := &s.doc.IPTables, &s.doc.IPVS
	f.DurationVar(&t.SyncPeriod.Duration, "iptables-sync-period", t.SyncPeriod.Duration, "`PERIOD` in which rules that others have removed are found and repaired, in every mode but ipvs, at least 100ms")
	f.DurationVar(&t.MinSyncPeriod.Duration, "iptables-min-sync-period", t.MinSyncPeriod.Duration, "shortest `PERIOD` between two writings of rules, in every mode but ipvs, at most --iptables-sync-period; two changes after quiet are written at once, what follows waits and is written together; other endpoints of a Service in user space need no rules and do not wait")
	f.BoolVar(&t.MasqueradeAll, "masquerade-all", false, "translate the source of all that the kernel forwards for cluster IPs")
	f.Int32Var(t.MasqueradeBit, "iptables-masquerade-bit", *t.MasqueradeBit, "`BIT` of a packet's mark that asks for source translation, 0 to 31")
	f.BoolVar(t.LocalhostNodePorts, "iptables-localhost-nodeports", *t.LocalhostNodePorts, "have the kernel forward node ports of 127.0.0.1 too")
	f.DurationVar(&v.SyncPeriod.Duration, "ipvs-sync-period", v.SyncPeriod.Duration, "`PERIOD` in which rules and virtual servers are verified in mode ipvs, at least 100ms")
	f.DurationVar(&v.MinSyncPeriod.Duration, "ipvs-min-sync-period", v.MinSyncPeriod.Duration, "the same in mode ipvs, a `PERIOD` of at most --ipvs-sync-period")
	f.StringVar(&v.Scheduler, "ipvs-scheduler", "", "`NAME` of the IPVS scheduler; empty: rr")
	f.StringSliceVar(&v.ExcludeCIDRs, "ipvs-exclude-cidrs", nil, "address `RANGES` whose virtual servers belong to others and are left alone")
	f.BoolVar(&v.StrictARP, "ipvs-strict-arp", false, "set arp_ignore to 1 and arp_announce to 2")
	f.DurationVar(&v.TCPTimeout.Duration, "ipvs-tcp-timeout", 0, "how long IPVS keeps idle TCP connections, a `DURATION`; 0 leaves it alone")
	f.DurationVar(&v.TCPFinTimeout.Duration, "ipvs-tcpfin-timeout", 0, "the same after a FIN, a `DURATION`; 0 leaves it alone")
	f.DurationVar(&v.UDPTimeout.Duration, "ipvs-udp-timeout", 0, "the same for UDP, a `DURATION`; 0 leaves it alone")
}

func (s *settings) declareKernel(f *pflag.FlagSet) {
	k := &s.doc.Conntrack
	f.Int32Var(k.MaxPerCore, "conntrack-max-per-core", *k.MaxPerCore, "`NUMBER` of connections that the kernel tracks for each core; 0 leaves its limit alone")
	f.Int32Var(k.Min, "conntrack-min", *k.Min, "least `NUMBER` of connections that the kernel tracks, whatever the number of cores")
	f.Int32Var(&s.conntrackMax, "conntrack-max", 0, "`NUMBER` of connections that the kernel tracks, in place of both (kube-proxy until 1.10)")
	f.DurationVar(&k.TCPEstablishedTimeout.Duration, "conntrack-tcp-timeout-established", k.TCPEstablishedTimeout.Duration, "how long the kernel tracks idle TCP connections, a `DURATION`; 0 leaves it alone")
	f.DurationVar(&k.TCPCloseWaitTimeout.Duration, "conntrack-tcp-timeout-close-wait", k.TCPCloseWaitTimeout.Duration, "the same in state CLOSE_WAIT, a `DURATION`; 0 leaves it alone")
	f.DurationVar(&k.UDPTimeout.Duration, "conntrack-udp-timeout", 0, "how long the kernel tracks UDP flows without an answer, a `DURATION`; 0 leaves it alone")
	f.DurationVar(&k.UDPStreamTimeout.Duration, "conntrack-udp-timeout-stream", 0, "the same with an answer, a `DURATION`; 0 leaves it alone")
	f.BoolVar(&k.TCPBeLiberal, "conntrack-tcp-be-liberal", false, "have the kernel not call TCP packets out of the window invalid")
	f.Int32Var(s.doc.OOMScoreAdj, "oom-score-adj", *s.doc.OOMScoreAdj, "`NUMBER` from -1000 (never) to 1000 (first) that says how soon the kernel ends Sluice when memory runs out")
}

func (s *settings) declareHTTP(f *pflag.FlagSet) {
	f.StringVar(&s.doc.HealthzBindAddress, "healthz-bind-address", s.doc.HealthzBindAddress, "`ADDRESS`, with or without a port, for /healthz and /livez; empty for none")
	f.StringVar(&s.doc.MetricsBindAddress, "metrics-bind-address", s.doc.MetricsBindAddress, "`ADDRESS`, with or without a port, for /metrics, /proxyMode and /healthz; empty for none")
	f.Int32Var(&s.healthzPort, "healthz-port", healthzPort, "`PORT` of --healthz-bind-address, if that has none; 0 for no server")
	f.Int32Var(&s.metricsPort, "metrics-port", metricsPort, "`PORT` of --metrics-bind-address, if that has none; 0 for no server")
	f.BoolVar(&s.doc.BindAddressHardFail, "bind-address-hard-fail", false, "end when one of these addresses cannot be listened on")
	f.BoolVar(&s.doc.EnableProfiling, "profiling", false, "serve /debug/pprof where metrics are served")
}

func (s *settings) declareLog(f *pflag.FlagSet) {
	l := &s.doc.Logging
	f.VarP(logsapi.VerbosityLevelPflag(&l.Verbosity), "v", "v", "`LEVEL`: 0 what an operator needs, 1 and more debugging")
	f.StringVar(&l.Format, "logging-format", l.Format, "`FORMAT` of the log: text or json")
	f.BoolVar(&s.logToStderr, "logtostderr", true, "log to standard error, whatever --log-file and --log-dir say")
	f.BoolVar(&s.Log.AlsoStderr, "alsologtostderr", false, "log to standard error as well as to a file")
	f.StringVar(&s.logFile, "log-file", "", "`FILE` to log to, with --logtostderr=false")
	f.StringVar(&s.logDir, "log-dir", "", "`FOLDER` to log in, to sluice.log, with --logtostderr=false and no --log-file")
	f.Uint64Var(&s.Log.MaxSize, "log-file-max-size", 1800, "`MB` after which a log file begins anew; 0 for no limit")
}

func (s *settings) declareOther(f *pflag.FlagSet) {
	f.BoolVar(&s.doc.WindowsRunAsService, "windows-service", false, "run under the service manager of Windows")
	f.StringVar(&s.Action.WriteConfigTo, "write-config-to", "", "write what the flags or --config mean, with all defaults, to `FILE` and exit")
	f.BoolVar(&s.Action.InitOnly, "init-only", false, "set what needs full privileges (conntrack) and exit; the program may then run with CAP_NET_ADMIN and CAP_NET_RAW")
	f.BoolVar(&s.Action.Cleanup, "cleanup", false, "remove every iptables rule, chain and ipset of Sluice and of the old userspace kube-proxy, then exit")
	f.BoolVar(&s.Action.Cleanup, "cleanup-iptables", false, "the older name of --cleanup")
	f.Var((*versionForm)(&s.Action.Version), "version", "print the version and exit; raw prints how it was built too")
	f.Lookup("version").NoOptDefVal = "true"
	f.BoolVarP(&s.Action.Help, "help", "h", false, "print this help and exit")
}

// versionForm is the value of --version: true, false or raw.
type versionForm string

func (v *versionForm) String() string { return string(*v) }
func (v *versionForm) Type() string   { return "version" }
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

// Usage is the help text.
func Usage() string {
	var b strings.Builder
	b.WriteString("Sluice balances Kubernetes Services in user space, in place of kube-proxy.\n\n" +
		"Usage:\n" +
		"  sluice --config FILE              serve the Services of a cluster until SIGTERM, as a file for kube-proxy says\n" +
		"  sluice --kubeconfig FILE [flags]  the same, as flags for kube-proxy say; in a pod: sluice [flags]\n" +
		"  sluice --manifests PATH [flags]   serve the Services of files\n" +
		"  sluice upgrade [flags]            hand everything to a new process, without loss\n" +
		"  sluice --cleanup                  remove all traces from the kernel\n" +
		"  sluice explain --help             who gets a client of a Service, and why\n")
	_, groups := declare()
	for _, g := range groups {
		fmt.Fprintf(&b, "\n%s:\n%s", g.title, g.flags.FlagUsages())
	}
	return b.String()
}

// logFileName works out the flags of klog that say where the log goes.
func (s *settings) logFileName() string {
	switch {
	case s.logToStderr:
		return ""
	case s.logFile == "" && s.logDir != "":
		return filepath.Join(s.logDir, "sluice.log")
	}
	return s.logFile
}
