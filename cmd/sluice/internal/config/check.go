package config

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"mime"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	goruntime "runtime"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/netfilter/sysctl"
	"github.com/sluice-lb/sluice/kernelmodes/ipvs"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/redirect"
)

// name names an option as the user wrote it: by the flag, or by the field of the file.
func (s *settings) name(flag string) string {
	o := s.options[flag]
	if s.File == "" || o.field == "" || s.flags.Changed(flag) && s.effectiveBesideFile(o) {
		return "--" + flag
	}
	return s.File + ": " + o.field
}

// reject notes that an option has a wrong value.
func (s *settings) reject(flag, format string, args ...any) {
	s.fail("%s "+format, append([]any{s.name(flag)}, args...)...)
}

// fail notes a mistake.
func (s *settings) fail(format string, args ...any) {
	s.errs = append(s.errs, fmt.Errorf(format, args...))
}

// check turns settings into the rest of the Config.
func (s *settings) check() error {
	s.checkLimits()
	s.checkMode()
	s.checkNode()
	s.checkLocalTraffic()
	s.checkAddresses()
	s.checkAPI()
	s.checkKernel()
	s.checkLog()
	s.checkOwn()
	return errors.Join(s.errs...)
}

// limit is the least and the most that an option may be, and what the error says to give.
type limit struct {
	least, most int64
	give        string
}

// shortestSync bounds how often the kernel is asked for all its rules.
const shortestSync = 100 * time.Millisecond

// limits are those of numbers and durations; others may be 0 or more.
var limits = map[string]limit{
	"config-sync-period":           {1, math.MaxInt64, "a duration above 0, like 15m"},
	"kube-api-burst":               {0, math.MaxInt64, "0 or more, like 10"},
	"healthz-port":                 {0, math.MaxUint16, "a port from 1 to 65535, or 0 for no server"},
	"metrics-port":                 {0, math.MaxUint16, "a port from 1 to 65535, or 0 for no server"},
	"iptables-sync-period":         {int64(shortestSync), math.MaxInt64, "100ms or more, like 30s"},
	"ipvs-sync-period":             {int64(shortestSync), math.MaxInt64, "100ms or more, like 30s"},
	"iptables-masquerade-bit":      {0, 31, "0 to 31"},
	"oom-score-adj":                {-1000, 1000, "-1000 to 1000"},
	"drain-timeout":                {0, math.MaxInt64, "0 or more, like 30s"},
	"loops":                        {1, 1024, "1 to 1024"},
	"outlier-consecutive-failures": {2, 1000, "2 to 1000"},
	"outlier-base-ejection-time":   {int64(100 * time.Millisecond), int64(time.Hour), "100ms to 1h, like 30s"},
	"outlier-max-ejection-percent": {0, 100, "0 to 100"},
	"outlier-panic-threshold":      {0, 100, "0 to 100"},
	"outlier-failure-percentage":   {0, 100, "0 to 100"},
	"max-service-share":            {1, 100, "1 to 100"},
	"max-client-share":             {1, 100, "1 to 100"},
	"access-log-sample":            {1, 1 << 30, "1 or more"},
	"metrics-services":             {0, 100_000, "0 to 100000"},
	"metrics-endpoints":            {0, 100_000, "0 to 100000"},
	"metrics-histograms":           {0, 100_000, "0 to 100000"},
}

func (s *settings) checkLimits() {
	for _, g := range s.groups() { // once more: a file has brought other pointers
		for _, o := range g.options {
			l, ok := limits[o.name]
			if !ok {
				l = limit{0, math.MaxInt64, "0 or more"}
			}
			v := reflect.Indirect(reflect.ValueOf(o.value))
			if v.CanInt() && (v.Int() < l.least || v.Int() > l.most) {
				s.reject(o.name, "%v: give %s", v, l.give)
			}
		}
	}
}

// checkMode checks what is forwarded how.
func (s *settings) checkMode() {
	d := &s.Document
	switch d.Mode {
	case "":
		d.Mode = ModeUserspace // what an empty mode meant until kube-proxy 1.1, and what Sluice is for
		if s.modeless && !s.Action.InitOnly && goruntime.GOOS == "linux" {
			s.warn("%s: mode is empty: Services are served in user space, where kube-proxy takes iptables, so that "+
				"endpoints see an address of the node in place of the client's: give mode iptables there or by "+
				"--proxy-mode to keep the client's, or userspace", s.File)
		}
	case ModeUserspace, ModeWinUserspace, ModeQueue, ModeNFTables, ModeIPTables, ModeIPVS, ModeAuto:
	case "kernelspace":
		s.reject("proxy-mode",
			"%q is not one of Sluice's: give userspace, queue, nftables, iptables, ipvs, auto or winuserspace",
			string(d.Mode))
	default:
		s.reject("proxy-mode",
			"%q is unknown: give userspace (the default), queue, nftables, iptables, ipvs, auto or winuserspace",
			string(d.Mode))
	}
	s.DataPath.Mode = string(d.Mode)
	inUserspace := s.DataPath.Mode == ModeUserspace || s.DataPath.Mode == ModeAuto
	if inUserspace && goruntime.GOOS == "windows" {
		s.DataPath.Mode = ModeWinUserspace // as for kube-proxy until 1.25, which had nothing else by this name there
	}
	s.DataPath.ServiceInterface = strings.TrimSpace(s.DataPath.ServiceInterface)
	s.Process.WindowsService = d.WindowsRunAsService && goruntime.GOOS == "windows"
	if d.WindowsRunAsService && !s.Process.WindowsService {
		s.warn("%s is ignored: this is not Windows", s.name("windows-service"))
	}
	var err error
	switch s.DataPath.BindAddress, err = netip.ParseAddr(d.BindAddress); {
	case err != nil:
		s.reject("bind-address", "%q is not an IP address: give one like 0.0.0.0 or 192.0.2.1", d.BindAddress)
	case s.DataPath.BindAddress.IsLoopback() && inUserspace && s.DataPath.Mode != ModeWinUserspace:
		s.reject("bind-address",
			"%s: redirected packets do not arrive on localhost: give 0.0.0.0 or an address of this node",
			s.DataPath.BindAddress)
	case s.DataPath.BindAddress.Zone() != "":
		s.reject("bind-address",
			"%s: packets cannot be redirected to a link-local address: give 0.0.0.0, :: or another address",
			s.DataPath.BindAddress)
	}
	if s.DataPath.NodePorts, err = parseNodePorts(d.NodePortAddresses); err != nil {
		s.reject("nodeport-addresses", "%w", err)
	} else if len(d.NodePortAddresses) == 0 {
		s.DataPath.NodePorts = DefaultNodePorts(s.DataPath.Mode)
	}
	if n := &s.DataPath.NodePorts; s.DataPath.Mode == ModeIPTables && !*d.IPTables.LocalhostNodePorts {
		n.noLoopback = true
		if n.loopback() {
			s.warn("%s has loopback addresses, which %s=false takes from it", s.name("nodeport-addresses"),
				s.name("iptables-localhost-nodeports"))
		}
	}
	if s.DataPath.ProxyPortRange, err = redirect.ParsePortRange(d.PortRange); err != nil {
		s.reject("proxy-port-range", "is wrong: %w", err)
	}
	s.DataPath.UDPTimeout = d.UDPIdleTimeout.Duration
	if _, err := lb.ParseScheduler(s.DataPath.Policies.Scheduler); err != nil { // as one of ipvs
		s.reject("default-policy", "scheduler: %w", err)
	}
}

// checkNode checks the name, the zone and the pods of this node.
func (s *settings) checkNode() {
	if s.hostname != "" {
		s.Document.HostnameOverride = strings.ToLower(strings.TrimSpace(s.hostname))
	}
	name := s.Document.HostnameOverride
	if name == "" && s.hostname == "" {
		var err error
		if name, err = os.Hostname(); err != nil {
			s.fail("the host's name cannot be read (%w): give --hostname-override", err)
		}
	}
	s.Node.Name = strings.ToLower(strings.TrimSpace(name)) // as kubelet names its Node
	given := cmp.Or(s.hostname, s.Document.HostnameOverride)
	if wrong := validation.IsDNS1123Subdomain(s.Node.Name); given != "" && len(wrong) > 0 {
		s.reject("hostname-override", "%q cannot be the name of a Node: give one that kubectl get nodes shows, "+
			"of letters, digits, dots and dashes", given)
	}
	if wrong := validation.IsValidLabelValue(s.Node.Zone); len(wrong) > 0 {
		s.reject("node-zone", "%q: give a value that the label topology.kubernetes.io/zone may have, of letters, "+
			"digits and -_. in between", s.Node.Zone)
	}
	s.Node.PodCIDRs = s.prefixes("node-pod-cidrs", s.podCIDRs)
}

// checkLocalTraffic checks how traffic of pods is detected.
func (s *settings) checkLocalTraffic() {
	d := &s.Document
	var ranges []string
	if d.ClusterCIDR != "" {
		ranges = strings.Split(d.ClusterCIDR, ",")
	}
	cidrs := s.prefixes("cluster-cidr", ranges)
	if len(ranges) > 2 || len(cidrs) == 2 && cidrs[0].Addr().Is6() == cidrs[1].Addr().Is6() {
		s.reject("cluster-cidr",
			"%q: give one range, or one of each family like 10.244.0.0/16,fd00:10:244::/56", d.ClusterCIDR)
	}
	orDefault(&d.DetectLocalMode, DetectClusterCIDR)
	mode := string(d.DetectLocalMode)
	if mode == DetectClusterCIDR {
		s.Node.ClusterCIDRs = cidrs
	}
	ways := []string{DetectClusterCIDR, DetectNodeCIDR, DetectBridgeInterface, DetectInterfaceNamePrefix}
	if !slices.Contains(ways, mode) {
		s.reject("detect-local-mode",
			"%q is unknown: give ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix", mode)
	}
	for _, of := range []struct{ mode, flag, name string }{
		{DetectBridgeInterface, "pod-bridge-interface", d.DetectLocal.BridgeInterface},
		{DetectInterfaceNamePrefix, "pod-interface-name-prefix", d.DetectLocal.InterfaceNamePrefix},
	} {
		switch {
		case of.mode == mode && of.name == "":
			s.reject(of.flag, "is empty: give it, or another way to detect local traffic than %s", mode)
		case of.mode != mode && of.name != "":
			s.warn("%s is ignored with %s %s", s.name(of.flag), s.name("detect-local-mode"), mode)
		}
		if len(of.name) > 15 || strings.ContainsAny(of.name, "/: \t\n") { // IFNAMSIZ, dev_valid_name in Linux
			s.reject(of.flag, "%q cannot be the name of an interface: give at most 15 characters, no space, colon "+
				"or slash among them", of.name)
		}
	}
}

// checkAddresses checks the addresses of the HTTP servers.
func (s *settings) checkAddresses() {
	healthz, metrics := s.Document.HealthzBindAddress, s.Document.MetricsBindAddress
	for _, at := range []struct{ flag, addr string }{
		{"healthz-bind-address", healthz}, {"metrics-bind-address", metrics},
	} {
		addr := at.addr
		if strings.HasPrefix(addr, ":") {
			addr = "[::]" + addr // all addresses
		}
		switch to, err := netip.ParseAddrPort(addr); {
		case addr == "":
		case err != nil:
			s.reject(at.flag, "%q: %w: give an IP address with a port, like 127.0.0.1:10249, or nothing for none",
				at.addr, err)
		case to.Port() == 0 && s.File != "": // a flag may say so: any port, which the log names
			s.reject(at.flag, "%q: give a port from 1 to 65535", at.addr)
		}
	}
	if healthz == metrics && healthz != "" && !strings.HasSuffix(healthz, ":0") {
		s.reject("metrics-bind-address",
			"%q is that of %s too: give another port", metrics, s.name("healthz-bind-address"))
	}
	if s.Page != PageAuto && s.Page != PageAlways && s.Page != PageNever {
		s.reject("page", "%q is unknown: give auto, always or never", s.Page)
	}
}

// checkAPI checks where Services come from.
func (s *settings) checkAPI() {
	k := &s.Document.ClientConnection
	switch {
	case s.Action.Cleanup || s.Action.WriteConfigTo != "" || s.Action.InitOnly: // nothing is served
	case !s.FromAPI() && (k.Kubeconfig != "" || s.Source.Master != ""):
		s.fail("take Services from --manifests or from the API server, not from both: leave out --manifests, or %s "+
			"and --master", s.name("kubeconfig"))
	case k.Kubeconfig != "":
		if err := readable(k.Kubeconfig); err != nil {
			s.fail("%s: %w: give a file that Sluice may read", s.name("kubeconfig"), err)
		}
	}
	// Those that an API server streams changes in and Sluice reads.
	types := []string{runtime.ContentTypeProtobuf, runtime.ContentTypeJSON}
	if !slices.Contains(types, k.ContentType) {
		s.reject("kube-api-content-type", "%q is unknown: give %s", k.ContentType, strings.Join(types, " or "))
	}
	for one := range strings.SplitSeq(k.AcceptContentTypes, ",") {
		kind, _, err := mime.ParseMediaType(one)
		known := slices.Contains(append(types, "*/*", "application/*"), kind)
		if k.AcceptContentTypes != "" && (err != nil || !known) {
			s.fail("%s: clientConnection.acceptContentTypes %q is unknown: give a list of %s, or nothing", s.File, one,
				strings.Join(types, " and "))
		}
	}
	if q := float64(k.QPS); math.IsNaN(q) || math.IsInf(q, 0) {
		s.reject("kube-api-qps", "%v: give a number like 5, or one below 0 for no limit", q)
	}
}

// checkKernel checks what the kernel is asked to do and to hold.
func (s *settings) checkKernel() {
	d, k := &s.Document, &s.Kernel
	k.ExcludeCIDRs = s.prefixes("ipvs-exclude-cidrs", d.IPVS.ExcludeCIDRs)
	if d.IPVS.Scheduler != "" {
		if err := ipvs.CheckScheduler(d.IPVS.Scheduler); err != nil {
			s.reject("ipvs-scheduler", "%w", err)
		}
	}
	s.checkPeriods("iptables-min-sync-period", d.IPTables.SyncPeriod, d.IPTables.MinSyncPeriod)
	s.checkPeriods("ipvs-min-sync-period", d.IPVS.SyncPeriod, d.IPVS.MinSyncPeriod)
	k.SyncPeriod, k.MinSyncPeriod = d.IPTables.SyncPeriod.Duration, d.IPTables.MinSyncPeriod.Duration
	switch s.checkNFTables(); s.DataPath.Mode {
	case ModeNFTables, ModeQueue, ModeAuto:
		k.SyncPeriod, k.MinSyncPeriod = d.NFTables.SyncPeriod.Duration, d.NFTables.MinSyncPeriod.Duration
	case ModeIPVS:
		k.SyncPeriod, k.MinSyncPeriod = d.IPVS.SyncPeriod.Duration, d.IPVS.MinSyncPeriod.Duration
	}
	c := &d.Conntrack
	k.Conntrack = sysctl.Conntrack{Accounting: k.Conntrack.Accounting, MaxPerCore: *c.MaxPerCore, Min: *c.Min,
		BeLiberal:      c.TCPBeLiberal,
		TCPEstablished: c.TCPEstablishedTimeout.Duration, TCPCloseWait: c.TCPCloseWaitTimeout.Duration,
		UDP: c.UDPTimeout.Duration, UDPStream: c.UDPStreamTimeout.Duration}
}

// checkPeriods checks the shorter one of the two periods of a mode that the kernel forwards by.
func (s *settings) checkPeriods(flag string, period, shortest metav1.Duration) {
	if shortest.Duration > max(period.Duration, shortestSync) {
		s.reject(flag, "%v: give no more than the sync period of %v", shortest.Duration, period.Duration)
	}
}

// checkNFTables checks the fields of mode nftables, which have no flags of their own.
func (s *settings) checkNFTables() {
	t := &s.Document.NFTables
	if s.File == "" {
		return // they are those of iptables
	}
	if bit := *t.MasqueradeBit; bit < 0 || bit > 31 {
		s.fail("%s: nftables.masqueradeBit %d: give 0 to 31", s.File, bit)
	}
	if t.SyncPeriod.Duration < shortestSync {
		s.fail("%s: nftables.syncPeriod %v: give 100ms or more, like 30s", s.File, t.SyncPeriod.Duration)
	}
	if least := t.MinSyncPeriod.Duration; least < 0 || least > max(t.SyncPeriod.Duration, shortestSync) {
		s.fail("%s: nftables.minSyncPeriod %v: give 0 or more, and no more than the sync period of %v", s.File, least,
			t.SyncPeriod.Duration)
	}
}

func (s *settings) checkLog() {
	if f := s.AccessLog.Format; f != LogJSON && f != LogTCPLog {
		s.reject("access-log-format", "%q is unknown: give %s", f, logFormats)
	}
	if s.AccessLog.File == "" {
		s.reject("access-log-file", "it is empty: give a file, or - for standard output")
	}
	switch s.Document.Logging.Format {
	case "text":
	case "json":
		s.Log.JSON = true
	default:
		s.reject("logging-format", "%q is unknown: give text or json", s.Document.Logging.Format)
	}
	s.Log.Verbosity = int(s.Document.Logging.Verbosity)
	switch { // the flags of klog that say where the log goes
	case s.logToStderr:
	case s.logFile != "":
		s.Log.File = s.logFile
	case s.logDir != "":
		s.Log.File = filepath.Join(s.logDir, "sluice.log")
	default:
		s.warn("--logtostderr=false is ignored without --log-file or --log-dir: the log goes to standard error")
	}
}

// maxLifetime is below the longest timeout of a member of a set, 4,294,967 s (ipset(8)).
const maxLifetime = 1000 * time.Hour

// checkOwn checks what kube-proxy does not have.
func (s *settings) checkOwn() {
	if slices.Contains(s.Source.Manifests, "") {
		s.reject("manifests", "is empty: give a file or folder")
	}
	if wrong := validation.IsValidLabelValue(s.Source.ServiceProxyName); len(wrong) > 0 {
		s.reject("service-proxy-name",
			"%q: give a value that a label may have, of letters, digits and -_. in between", s.Source.ServiceProxyName)
	}
	p := &s.Process
	switch given := s.flags.Changed("on-exit"); {
	case p.OnExit != Offload && p.OnExit != Refuse && p.OnExit != CleanUp:
		s.reject("on-exit", "%q is unknown: give offload, refuse or cleanup", p.OnExit)
	case s.cleanupOnExit && given && p.OnExit != CleanUp:
		s.reject("cleanup-on-exit", "contradicts --on-exit=%s: give one of them", p.OnExit)
	case s.cleanupOnExit:
		p.OnExit = CleanUp
	}
	if d := s.Kernel.RulesLifetime; d%time.Second != 0 || d > maxLifetime {
		s.reject("rules-lifetime", "%v: give whole seconds up to %v, like 10m, or 0", d, maxLifetime)
	}
	s.checkMarks()
	if f := s.Metrics.Families; f != BasicFamilies && f != AllFamilies {
		s.reject("metrics-service-families", "%q is unknown: give basic or all", f)
	}
	s.checkAPISocket()
	if p.HandoverSocket == "" && p.PIDFile != "" {
		p.HandoverSocket = p.PIDFile + ".sock"
	}
	if p.HandoverSocket != "" && goruntime.GOOS != "linux" {
		s.warn("--handover-socket and --pid-file are ignored: hand-over needs Linux")
	}
	if len(p.HandoverSocket) > maxSocketPath {
		s.reject("handover-socket", "%s: give a path of at most %d bytes", p.HandoverSocket, maxSocketPath)
	}
	switch filter := s.DataPath.PacketFilter; {
	case filter != AutoFilter && filter != NFTables && filter != IPTables:
		s.reject("packet-filter", "%q is unknown: give auto, nftables or iptables", filter)
	case filter != AutoFilter && s.DataPath.Mode == ModeWinUserspace:
		s.warn("--packet-filter is ignored with mode winuserspace, which steers nothing")
	}
	if d := s.DataPath.BusyPoll; d > eventloop.MaxBusyPoll || d%time.Microsecond != 0 {
		s.reject("busy-poll", "%v: give 0 to %v in whole microseconds, like 50us", d, eventloop.MaxBusyPoll)
	}
}

// checkAPISocket decides where the API is.
func (s *settings) checkAPISocket() {
	p := &s.Process
	p.APIRequested = p.APISocket != ""
	switch {
	case p.APIRequested && p.APISocket != NoSocket && goruntime.GOOS != "linux":
		s.warn("--api-socket is ignored: it needs Linux")
	case p.APIRequested && len(p.APISocket) > maxSocketPath:
		s.reject("api-socket", "%s: give a path of at most %d bytes", p.APISocket, maxSocketPath)
	case !p.APIRequested && p.HandoverSocket != "":
		p.APISocket = filepath.Join(filepath.Dir(p.HandoverSocket), apiSocketName)
	case !p.APIRequested:
		p.APISocket = DefaultAPISocket
	}
	if p.APISocket == p.HandoverSocket || p.APISocket == p.PIDFile {
		s.reject("api-socket", "%s: --handover-socket or --pid-file is there: give another path", p.APISocket)
	}
	if goruntime.GOOS != "linux" {
		p.APISocket = NoSocket
	}
}

// prefixes parses address ranges; one that is wrong is left out.
func (s *settings) prefixes(flag string, list []string) (out []netip.Prefix) {
	for _, text := range list {
		p, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil {
			s.reject(flag, "%q is not an address range: give one like 10.244.0.0/16", text)
			continue
		}
		out = append(out, p.Masked())
	}
	return out
}

// withPort adds a port to an address that has none. What is no address is left
// for checkAddresses to complain about, and what is no port for checkLimits.
func withPort(addr string, port int32) string {
	if a, err := netip.ParseAddr(addr); err == nil {
		return netip.AddrPortFrom(a, uint16(port)).String()
	}
	return addr
}

// maxSocketPath is the longest path of a socket, in bytes: sun_path has 108 (unix(7)), and a process id is appended for
// a moment.
const maxSocketPath = 90

// readable says why a file cannot be read. What is no plain file, such as a pipe,
// is not opened: that is for its reader to do, once.
func readable(name string) error {
	info, err := os.Stat(name)
	switch {
	case err != nil:
		return err
	case info.IsDir():
		return fmt.Errorf("%s is a folder", name)
	case !info.Mode().IsRegular():
		return nil
	}
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	return f.Close()
}
