package config

import (
	"errors"
	"fmt"
	"math"
	"mime"
	"net"
	"net/netip"
	"os"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	componentconfig "k8s.io/component-base/config"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/netfilter/conntrack"
	"github.com/sluice-lb/sluice/kernelmodes/ipvs"
	"github.com/sluice-lb/sluice/redirect"
)

// checker collects mistakes. It names them as the user wrote them: by the flag, or
// by the field of the file.
type checker struct {
	file    string // "" if flags say all
	options map[string]option
	errs    []error
}

func (c *checker) name(flag string) string {
	if field := c.options[flag].field; c.file != "" && field != "" {
		return c.file + ": " + field
	}
	return "--" + flag
}

// reject notes that a flag, or the field that it stands for, has a wrong value.
func (c *checker) reject(flag, format string, args ...any) {
	c.rejectNamed(c.name(flag), format, args...)
}

func (c *checker) rejectNamed(name, format string, args ...any) {
	c.errs = append(c.errs, fmt.Errorf("%s "+format, append([]any{name}, args...)...))
}

// check turns settings into the rest of the Config.
func (s *settings) check() error {
	c := &checker{file: s.File, options: s.options}
	s.checkMode(c)
	s.checkNode(c)
	s.checkAddresses(c)
	s.checkAPI(c)
	s.checkKernelModes(c)
	s.checkKernel(c)
	s.checkLog(c)
	s.checkOwn(c)
	s.Document = s.doc
	return errors.Join(c.errs...)
}

// checkMode checks what is forwarded how.
func (s *settings) checkMode(c *checker) {
	d := &s.doc
	switch d.Mode {
	case "":
		d.Mode = ModeUserspace // what an empty mode meant until kube-proxy 1.1, and what Sluice is for
	case ModeUserspace, ModeWinUserspace, ModeIPTables, ModeIPVS:
	case "nftables", "kernelspace":
		c.reject("proxy-mode",
			"%q is not one of Sluice's: give userspace, iptables, ipvs or winuserspace", string(d.Mode))
	default:
		c.reject("proxy-mode",
			"%q is unknown: give userspace, which is the default, iptables, ipvs or winuserspace", string(d.Mode))
	}
	s.DataPath.Mode = string(d.Mode)
	if s.DataPath.Mode == ModeUserspace && goruntime.GOOS == "windows" {
		s.DataPath.Mode = ModeWinUserspace // as for kube-proxy until 1.25, which had nothing else by this name there
	}
	s.DataPath.ServiceInterface = strings.TrimSpace(s.DataPath.ServiceInterface)
	s.Process.WindowsService = d.WindowsRunAsService && goruntime.GOOS == "windows"
	if d.WindowsRunAsService && !s.Process.WindowsService {
		s.Warnings = append(s.Warnings, c.name("windows-service")+" is ignored: this is not Windows")
	}
	var err error
	switch s.DataPath.BindAddress, err = netip.ParseAddr(d.BindAddress); {
	case err != nil:
		c.reject("bind-address", "%q is not an IP address: give one like 0.0.0.0 or 192.0.2.1", d.BindAddress)
	case s.DataPath.BindAddress.IsLoopback() && s.DataPath.Mode == ModeUserspace:
		c.reject("bind-address",
			"%s: redirected packets do not arrive on localhost: give 0.0.0.0 or an address of this node",
			s.DataPath.BindAddress)
	case s.DataPath.BindAddress.Zone() != "":
		c.reject("bind-address",
			"%s: packets cannot be redirected to a link-local address: give 0.0.0.0, :: or another address",
			s.DataPath.BindAddress)
	}
	if s.DataPath.NodePorts, err = parseNodePorts(d.NodePortAddresses); err != nil {
		c.reject("nodeport-addresses", "%w", err)
	}
	if s.DataPath.ProxyPortRange, err = redirect.ParsePortRange(d.PortRange); err != nil {
		c.reject("proxy-port-range", "is wrong: %w", err)
	}
	if s.DataPath.UDPTimeout = d.UDPIdleTimeout.Duration; s.DataPath.UDPTimeout <= 0 {
		c.reject("udp-timeout", "%v: give a duration above 0, like 250ms", s.DataPath.UDPTimeout)
	}
}

// checkNode checks the name of this node and how traffic of its pods is detected.
func (s *settings) checkNode(c *checker) {
	d := &s.doc
	name := d.HostnameOverride
	if s.hostname != "" {
		name = strings.ToLower(strings.TrimSpace(s.hostname))
		d.HostnameOverride = name
		if name == "" {
			c.rejectNamed("--hostname-override", "%q is blank: give the name of this node's Node object", s.hostname)
		}
	}
	if wrong := validation.IsDNS1123Subdomain(strings.ToLower(strings.TrimSpace(name))); name != "" && len(wrong) > 0 {
		named := c.name("hostname-override")
		if s.hostname != "" {
			named = "--hostname-override"
		}
		c.rejectNamed(named,
			"%q cannot be the name of a Node: give one that kubectl get nodes shows, of letters, digits, dots and "+
				"dashes", name)
	}
	if name == "" {
		host, err := os.Hostname()
		if err != nil {
			c.errs = append(c.errs, fmt.Errorf("the host's name cannot be read (%w): give --hostname-override", err))
		}
		name = host
	}
	s.Node.Name = strings.ToLower(strings.TrimSpace(name)) // as kubelet names its Node

	if wrong := validation.IsValidLabelValue(s.Node.Zone); len(wrong) > 0 {
		c.reject("node-zone",
			"%q: give a value that the label topology.kubernetes.io/zone may have, of letters, digits and -_. in "+
				"between", s.Node.Zone)
	}
	s.Node.PodCIDRs = c.prefixes("node-pod-cidrs", s.podCIDRs)
	var ranges []string
	if d.ClusterCIDR != "" {
		ranges = strings.Split(d.ClusterCIDR, ",")
	}
	if d.DetectLocalMode == "" {
		d.DetectLocalMode = DetectClusterCIDR
	}
	l := DetectLocal{Mode: string(d.DetectLocalMode), Bridge: d.DetectLocal.BridgeInterface,
		InterfacePrefix: d.DetectLocal.InterfaceNamePrefix,
		ClusterCIDRs:    c.prefixes("cluster-cidr", ranges)}
	if len(ranges) > 2 || len(l.ClusterCIDRs) == 2 && l.ClusterCIDRs[0].Addr().Is6() == l.ClusterCIDRs[1].Addr().Is6() {
		c.reject("cluster-cidr",
			"%q: give one range, or one of each family like 10.244.0.0/16,fd00:10:244::/56", d.ClusterCIDR)
	}
	c.interfaceName("pod-bridge-interface", l.Bridge)
	c.interfaceName("pod-interface-name-prefix", l.InterfacePrefix)
	s.unused(c, "pod-bridge-interface", l.Bridge, DetectBridgeInterface)
	s.unused(c, "pod-interface-name-prefix", l.InterfacePrefix, DetectInterfaceNamePrefix)
	switch l.Mode {
	case DetectClusterCIDR, DetectNodeCIDR:
	case DetectBridgeInterface:
		if l.Bridge == "" {
			c.reject("pod-bridge-interface",
				"is empty: give the name of the bridge, or another way to detect local traffic than BridgeInterface")
		}
	case DetectInterfaceNamePrefix:
		if l.InterfacePrefix == "" {
			c.reject("pod-interface-name-prefix",
				"is empty: give the prefix, or another way to detect local traffic than InterfaceNamePrefix")
		}
	default:
		c.reject("detect-local-mode",
			"%q is unknown: give ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix", l.Mode)
	}
	s.Node.DetectLocal = l
}

// checkAddresses checks the addresses of the HTTP servers.
func (s *settings) checkAddresses(c *checker) {
	d := &s.doc
	s.HTTP.HealthzAddress, s.HTTP.MetricsAddress = d.HealthzBindAddress, d.MetricsBindAddress
	s.HTTP.BindHardFail, s.HTTP.Profiling = d.BindAddressHardFail, d.EnableProfiling
	for name, port := range map[string]int32{"healthz-port": s.healthzPort, "metrics-port": s.metricsPort} {
		if port < 0 || port > 65535 {
			c.reject(name, "%d: give a port from 1 to 65535, or 0 for no server", port)
			return
		}
	}
	if err := checkHostPort(s.HTTP.HealthzAddress); err != nil {
		c.reject("healthz-bind-address", "%q: %w", s.HTTP.HealthzAddress, err)
	}
	if err := checkHostPort(s.HTTP.MetricsAddress); err != nil {
		c.reject("metrics-bind-address", "%q: %w", s.HTTP.MetricsAddress, err)
	}
	addr := s.HTTP.HealthzAddress
	if addr == s.HTTP.MetricsAddress && addr != "" && !strings.HasSuffix(addr, ":0") {
		c.reject("metrics-bind-address",
			"%q is that of %s too: give another "+
				"port", s.HTTP.MetricsAddress, c.name("healthz-bind-address"))
	}
}

// checkAPI checks where Services come from.
func (s *settings) checkAPI(c *checker) {
	k := s.doc.ClientConnection
	s.Source.API.Client = componentconfig.ClientConnectionConfiguration{Kubeconfig: k.Kubeconfig,
		AcceptContentTypes: k.AcceptContentTypes, ContentType: k.ContentType, QPS: k.QPS, Burst: k.Burst}
	s.Source.API.SyncPeriod = s.doc.ConfigSyncPeriod.Duration
	switch {
	case s.Action.Cleanup || s.Action.WriteConfigTo != "" || s.Action.InitOnly: // nothing is served
	case !s.FromAPI() && (k.Kubeconfig != "" || s.Source.API.Master != ""):
		c.errs = append(c.errs, fmt.Errorf(
			"take Services from --manifests or from the API server, not from both: leave out --manifests, or %s and "+
				"--master", c.name("kubeconfig")))
	case k.Kubeconfig != "":
		if err := readable(k.Kubeconfig); err != nil {
			c.errs = append(c.errs, fmt.Errorf(
				"%s: %w: give a file that Sluice may read", c.name("kubeconfig"), err))
		}
	}
	s.checkContentTypes(c)
	if q := float64(k.QPS); math.IsNaN(q) || math.IsInf(q, 0) {
		c.reject("kube-api-qps", "%v: give a number like 5, or one below 0 for no limit", q)
	}
	if k.Burst < 0 {
		c.reject("kube-api-burst", "%d: give 0 or more, like 10", k.Burst)
	}
	if s.Source.API.SyncPeriod <= 0 {
		c.reject("config-sync-period", "%v: give a duration above 0, like 15m", s.Source.API.SyncPeriod)
	}
}

// contentTypes are those that an API server streams changes in and Sluice reads.
var contentTypes = []string{runtime.ContentTypeProtobuf, runtime.ContentTypeJSON}

// checkContentTypes checks in which form the API server is asked to answer.
func (s *settings) checkContentTypes(c *checker) {
	k := s.doc.ClientConnection
	if !slices.Contains(contentTypes, k.ContentType) {
		c.reject("kube-api-content-type", "%q is unknown: give %s", k.ContentType, strings.Join(contentTypes, " or "))
	}
	if k.AcceptContentTypes == "" {
		return
	}
	for one := range strings.SplitSeq(k.AcceptContentTypes, ",") {
		kind, _, err := mime.ParseMediaType(one)
		if err != nil || !slices.Contains(contentTypes, kind) && kind != "*/*" && kind != "application/*" {
			c.rejectNamed(c.file+": clientConnection.acceptContentTypes",
				"%q is unknown: give a list of %s, or nothing", one, strings.Join(contentTypes, " and "))
		}
	}
}

// checkKernelModes checks the settings of forwarding by the kernel.
func (s *settings) checkKernelModes(c *checker) {
	t, v, k := s.doc.IPTables, s.doc.IPVS, &s.Kernel
	k.IPTables = IPTables{MasqueradeAll: t.MasqueradeAll, MasqueradeBit: int(*t.MasqueradeBit),
		LocalhostNodePorts: *t.LocalhostNodePorts}
	k.IPVS = IPVS{Scheduler: v.Scheduler, StrictARP: v.StrictARP,
		ExcludeCIDRs: c.prefixes("ipvs-exclude-cidrs", v.ExcludeCIDRs),
		TCPTimeout:   v.TCPTimeout.Duration, TCPFinTimeout: v.TCPFinTimeout.Duration, UDPTimeout: v.UDPTimeout.Duration}
	if bit := k.IPTables.MasqueradeBit; bit < 0 || bit > 31 {
		c.reject("iptables-masquerade-bit", "%d: give 0 to 31", bit)
	}
	if v.Scheduler != "" {
		if err := ipvs.CheckScheduler(v.Scheduler); err != nil {
			c.reject("ipvs-scheduler", "%w", err)
		}
	}
	c.periods("iptables", t.SyncPeriod.Duration, t.MinSyncPeriod.Duration)
	c.periods("ipvs", v.SyncPeriod.Duration, v.MinSyncPeriod.Duration)
	c.notNegative("ipvs-tcp-timeout", k.IPVS.TCPTimeout)
	c.notNegative("ipvs-tcpfin-timeout", k.IPVS.TCPFinTimeout)
	c.notNegative("ipvs-udp-timeout", k.IPVS.UDPTimeout)
	k.SyncPeriod, k.MinSyncPeriod = t.SyncPeriod.Duration, t.MinSyncPeriod.Duration
	if s.DataPath.Mode == ModeIPVS {
		k.SyncPeriod, k.MinSyncPeriod = v.SyncPeriod.Duration, v.MinSyncPeriod.Duration
	}
}

// checkKernel checks settings of the kernel that every mode has.
func (s *settings) checkKernel(c *checker) {
	k := s.doc.Conntrack
	s.Kernel.Conntrack = conntrack.Settings{MaxPerCore: *k.MaxPerCore, Min: *k.Min, BeLiberal: k.TCPBeLiberal,
		TCPEstablished: k.TCPEstablishedTimeout.Duration, TCPCloseWait: k.TCPCloseWaitTimeout.Duration,
		UDP: k.UDPTimeout.Duration, UDPStream: k.UDPStreamTimeout.Duration}
	for _, n := range []struct {
		flag  string
		value int32
	}{
		{"conntrack-max-per-core", *k.MaxPerCore},
		{"conntrack-min", *k.Min},
		{"conntrack-max", s.conntrackMax},
	} {
		if n.value < 0 {
			c.reject(n.flag, "%d: give 0 or more", n.value)
		}
	}
	c.notNegative("conntrack-tcp-timeout-established", s.Kernel.Conntrack.TCPEstablished)
	c.notNegative("conntrack-tcp-timeout-close-wait", s.Kernel.Conntrack.TCPCloseWait)
	c.notNegative("conntrack-udp-timeout", s.Kernel.Conntrack.UDP)
	c.notNegative("conntrack-udp-timeout-stream", s.Kernel.Conntrack.UDPStream)
	if s.Process.OOMScoreAdj = int(*s.doc.OOMScoreAdj); s.Process.OOMScoreAdj < -1000 || s.Process.OOMScoreAdj > 1000 {
		c.reject("oom-score-adj", "%d: give -1000 to 1000", s.Process.OOMScoreAdj)
	}
}

func (s *settings) checkLog(c *checker) {
	switch s.doc.Logging.Format {
	case "text":
	case "json":
		s.Log.JSON = true
	default:
		c.reject("logging-format", "%q is unknown: give text or json", s.doc.Logging.Format)
	}
	s.Log.Verbosity = int(s.doc.Logging.Verbosity)
	s.Log.File = s.logFileName()
}

// checkOwn checks what kube-proxy does not have.
func (s *settings) checkOwn(c *checker) {
	if slices.Contains(s.Source.Manifests, "") {
		c.reject("manifests", "is empty: give a file or folder")
	}
	if wrong := validation.IsValidLabelValue(s.Source.ServiceProxyName); len(wrong) > 0 {
		c.reject("service-proxy-name",
			"%q: give a value that a label may have, of letters, digits and -_. in between", s.Source.ServiceProxyName)
	}
	if s.Process.DrainTimeout < 0 {
		c.reject("drain-timeout", "%v: give 0 or more, like 30s", s.Process.DrainTimeout)
	}
	if s.Process.HandoverSocket == "" && s.Process.PIDFile != "" {
		s.Process.HandoverSocket = s.Process.PIDFile + ".sock"
	}
	if s.Process.HandoverSocket != "" && goruntime.GOOS != "linux" {
		s.Warnings = append(s.Warnings, "--handover-socket and --pid-file are ignored: hand-over needs Linux")
	}
	// sun_path has 108 bytes (unix(7)), and a process id is appended for a moment.
	if len(s.Process.HandoverSocket) > 90 {
		c.reject("handover-socket", "%s: give a path of at most 90 bytes", s.Process.HandoverSocket)
	}
	if s.DataPath.Loops < 1 || s.DataPath.Loops > 1024 {
		c.reject("loops", "%d: give 1 to 1024", s.DataPath.Loops)
	}
	if d := s.DataPath.BusyPoll; d < 0 || d > eventloop.MaxBusyPoll || d%time.Microsecond != 0 {
		c.reject("busy-poll",
			"%v: give 0 to %v in whole microseconds, like 50us", s.DataPath.BusyPoll, eventloop.MaxBusyPoll)
	}
}

// prefixes parses address ranges; one that is wrong is left out.
func (c *checker) prefixes(flag string, list []string) (out []netip.Prefix) {
	for _, s := range list {
		p, err := netip.ParsePrefix(strings.TrimSpace(s))
		if err != nil {
			c.reject(flag, "%q is not an address range: give one like 10.244.0.0/16", s)
			continue
		}
		out = append(out, p.Masked())
	}
	return out
}

// shortestSync bounds how often the kernel is asked for all its rules.
const shortestSync = 100 * time.Millisecond

// periods checks the two periods of a mode that the kernel forwards by.
func (c *checker) periods(mode string, period, shortest time.Duration) {
	if period < shortestSync {
		c.reject(mode+"-sync-period", "%v: give 100ms or more, like 30s", period)
	} else if shortest < 0 || shortest > period {
		c.reject(mode+"-min-sync-period",
			"%v: give 0 or more, and no more than the sync period of %v", shortest, period)
	}
}

// interfaceName checks a name, or the beginning of one, of a network interface.
func (c *checker) interfaceName(flag, name string) {
	if len(name) > 15 || strings.ContainsAny(name, "/: \t\n") { // IFNAMSIZ, dev_valid_name in Linux
		c.reject(flag,
			"%q cannot be the name of an interface: give at most 15 characters, no space, colon or slash "+
				"among them", name)
	}
}

// unused warns of what is given for another way to detect local traffic.
func (s *settings) unused(c *checker, flag, value, mode string) {
	if value != "" && string(s.doc.DetectLocalMode) != mode {
		s.Warnings = append(s.Warnings, fmt.Sprintf(
			"%s is ignored with %s "+
				"%s", c.name(flag), c.name("detect-local-mode"), s.doc.DetectLocalMode))
	}
}

func (c *checker) notNegative(flag string, d time.Duration) {
	if d < 0 {
		c.reject(flag, "%v: give 0 or more", d)
	}
}

// withPort adds a port to an address that has none. What is no address is left
// for checkHostPort to complain about.
func withPort(addr string, port int32) string {
	if a, err := netip.ParseAddr(addr); err == nil {
		return net.JoinHostPort(a.String(), strconv.Itoa(int(port)))
	}
	return addr
}

func checkHostPort(s string) error {
	if s == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return errors.New("give an IP address with a port, like 127.0.0.1:10249, or nothing for none")
	}
	if _, err := netip.ParseAddr(host); err != nil && host != "" {
		return fmt.Errorf("%q is not an IP address: give one like 127.0.0.1:10249", host)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("%q is not a port: give one from 0 to 65535, like 127.0.0.1:10249", port)
	}
	return nil
}

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
