package config

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/sluice-lb/sluice/redirect"
)

// Config is what the program was asked to do. Parse fills and checks it.
type Config struct {
	Cleanup bool // remove every trace of Sluice from the kernel and exit
	Version bool // print the version and exit
	Help    bool // print the help and exit

	Manifests        []string // files and folders of Services and EndpointSlices
	ServiceProxyName string   // the Services that are ours, by their label

	NodeName string         // of the Node object and in EndpointSlices
	NodeZone string         // empty: that of the Node object
	PodCIDRs []netip.Prefix // of this node's pods; empty: those of the Node object

	Mode           string             // data path: "userspace"
	BindAddress    netip.Addr         // where proxy ports listen, in its family
	NodePorts      NodePortAddresses  // where node ports listen
	ProxyPortRange redirect.PortRange // ports to listen on
	UDPTimeout     time.Duration      // idle time after which a UDP flow ends
	Loops          int                // event loops, at least 1
	DrainTimeout   time.Duration      // longest wait for connections at the end
	SyncPeriod     time.Duration      // how often rules are verified
	Conntrack      redirect.Conntrack // settings of the kernel's table of connections

	HealthzAddress string // host:port, or empty for none
	MetricsAddress string // host:port, or empty for none

	Verbosity int // 0 info, 1 and more debug
}

// Parse reads the arguments, without the program's name. The error names the flag
// and the fix, one line a mistake.
func Parse(args []string) (Config, error) {
	var c Config
	var text texts
	flags, _ := declare(&c, &text)
	if err := flags.Parse(args); err != nil {
		return c, fmt.Errorf("read flags: %w (see --help)", err)
	}
	if c.Help || c.Version {
		return c, nil
	}
	if rest := flags.Args(); len(rest) > 0 {
		return c, fmt.Errorf("read flags: %q is not a flag: Sluice takes no other arguments (see --help)", rest[0])
	}
	return c, c.check(text)
}

// texts are flag values that need more than pflag's parsing.
type texts struct {
	bindAddress, portRange, healthz, metrics string
	nodePorts, podCIDRs                      []string
}

// group is a part of the help text.
type group struct {
	title string
	flags *pflag.FlagSet
}

// declare binds every flag to c and text.
func declare(c *Config, text *texts) (*pflag.FlagSet, []group) {
	var groups []group
	add := func(title string, declare func(*pflag.FlagSet)) {
		f := pflag.NewFlagSet(title, pflag.ContinueOnError)
		f.SortFlags = false
		declare(f)
		groups = append(groups, group{title, f})
	}
	add("What to serve", func(f *pflag.FlagSet) {
		f.StringArrayVar(&c.Manifests, "manifests", nil, "`PATH` of a file or folder of Service, EndpointSlice and Endpoints manifests, YAML or JSON; watched for changes; may be given several times")
		f.StringVar(&c.ServiceProxyName, "service-proxy-name", "", "serve only Services whose label service.kubernetes.io/service-proxy-name is `NAME`; empty: only those without the label")
	})
	add("This node", func(f *pflag.FlagSet) {
		f.StringVar(&c.NodeName, "hostname-override", "", "`NAME` of this node in Node objects and EndpointSlices; empty: the host's name")
		f.StringVar(&c.NodeZone, "node-zone", "", "`ZONE` of this node, for topology hints; empty: the label topology.kubernetes.io/zone of its Node manifest")
		f.StringSliceVar(&text.podCIDRs, "node-pod-cidrs", nil, "address `RANGES` of this node's pods, for traffic policies; empty: those of its Node manifest")
	})
	add("Data path", func(f *pflag.FlagSet) {
		f.StringVar(&c.Mode, "proxy-mode", "userspace", "`MODE` of forwarding: userspace")
		f.StringVar(&text.bindAddress, "bind-address", "0.0.0.0", "`ADDRESS` on which proxy ports of its family listen; 0.0.0.0 and :: mean all, in both families; not a loopback address")
		f.StringSliceVar(&text.nodePorts, "nodeport-addresses", nil, "where node ports listen, a list of address `RANGES` and of the words primary, localhost and all; empty means all")
		f.StringVar(&text.portRange, "proxy-port-range", "", "`RANGE` of ports to listen on: a-b, a, or a+n (a to a+n); empty or 0 lets the kernel choose")
		f.DurationVar(&c.UDPTimeout, "udp-timeout", 250*time.Millisecond, "idle `DURATION` after which a UDP flow ends and its client may be sent to another endpoint")
		f.IntVar(&c.Loops, "loops", runtime.GOMAXPROCS(0), "`NUMBER` of event loops, 1 to 1024; the default is one per usable core")
		f.DurationVar(&c.DrainTimeout, "drain-timeout", 30*time.Second, "longest `DURATION` to wait on SIGTERM for open connections; what is left then is reset")
	})
	add("Kernel", func(f *pflag.FlagSet) {
		k := &c.Conntrack
		f.DurationVar(&c.SyncPeriod, "iptables-sync-period", 30*time.Second, "`PERIOD` in which rules that others have removed are found and repaired, at least 100ms")
		f.Int32Var(&k.MaxPerCore, "conntrack-max-per-core", 32*1024, "`NUMBER` of connections that the kernel tracks for each core; 0 leaves its limit alone")
		f.Int32Var(&k.Min, "conntrack-min", 128*1024, "least `NUMBER` of connections that the kernel tracks, whatever the number of cores")
		f.DurationVar(&k.TCPEstablished, "conntrack-tcp-timeout-established", 24*time.Hour, "how long the kernel tracks idle TCP connections, a `DURATION`; 0 leaves it alone")
		f.DurationVar(&k.TCPCloseWait, "conntrack-tcp-timeout-close-wait", time.Hour, "the same in state CLOSE_WAIT, a `DURATION`; 0 leaves it alone")
		f.DurationVar(&k.UDP, "conntrack-udp-timeout", 0, "how long the kernel tracks UDP flows without an answer, a `DURATION`; 0 leaves it alone")
		f.DurationVar(&k.UDPStream, "conntrack-udp-timeout-stream", 0, "the same with an answer, a `DURATION`; 0 leaves it alone")
		f.BoolVar(&k.BeLiberal, "conntrack-tcp-be-liberal", false, "have the kernel not call TCP packets out of the window invalid")
	})
	add("Health and metrics", func(f *pflag.FlagSet) {
		f.StringVar(&text.healthz, "healthz-bind-address", "0.0.0.0:10256", "`ADDRESS` with port for /healthz and /livez; empty for none")
		f.StringVar(&text.metrics, "metrics-bind-address", "127.0.0.1:10249", "`ADDRESS` with port for /metrics, /proxyMode and /healthz; empty for none")
	})
	add("Other", func(f *pflag.FlagSet) {
		f.BoolVar(&c.Cleanup, "cleanup", false, "remove every iptables rule, chain and ipset of Sluice and of the old userspace kube-proxy, then exit")
		f.IntVarP(&c.Verbosity, "v", "v", 0, "log `LEVEL`: 0 what an operator needs, 1 and more debugging")
		f.BoolVar(&c.Version, "version", false, "print the version and exit")
		f.BoolVarP(&c.Help, "help", "h", false, "print this help and exit")
	})
	all := pflag.NewFlagSet("sluice", pflag.ContinueOnError)
	all.SetOutput(io.Discard) // the caller prints the error, once
	for _, g := range groups {
		all.AddFlagSet(g.flags)
	}
	return all, groups
}

// Usage is the help text.
func Usage() string {
	var b strings.Builder
	b.WriteString("Sluice balances Kubernetes Services in user space.\n\n" +
		"Usage:\n" +
		"  sluice --manifests PATH [flags]   serve until SIGTERM\n" +
		"  sluice --cleanup                  remove all traces from the kernel\n")
	_, groups := declare(new(Config), new(texts))
	for _, g := range groups {
		fmt.Fprintf(&b, "\n%s:\n%s", g.title, g.flags.FlagUsages())
	}
	return b.String()
}

// modes are kube-proxy's, of which one is here.
var modes = []string{"userspace", "winuserspace", "iptables", "ipvs", "nftables", "kernelspace"}

func (c *Config) check(text texts) error {
	var errs []error
	reject := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.Mode == "" {
		c.Mode = "userspace" // as kube-proxy's empty mode asks for the default
	}
	switch {
	case c.Mode == "userspace":
	case slices.Contains(modes, c.Mode):
		reject("--proxy-mode %s is not supported by this release: use userspace", c.Mode)
	default:
		reject("--proxy-mode %q is unknown: use userspace", c.Mode)
	}
	var err error
	switch c.BindAddress, err = netip.ParseAddr(text.bindAddress); {
	case err != nil:
		reject("--bind-address %q is not an IP address: give one like 0.0.0.0 or 192.0.2.1", text.bindAddress)
	case c.BindAddress.IsLoopback():
		reject("--bind-address %s: cannot proxy on localhost, where steered packets do not arrive: give 0.0.0.0 or an address of this node", c.BindAddress)
	case c.BindAddress.Zone() != "":
		reject("--bind-address %s: a link-local address cannot be steered to: give 0.0.0.0, :: or another address of this node", c.BindAddress)
	}
	if c.NodePorts, err = parseNodePorts(text.nodePorts); err != nil {
		reject("--nodeport-addresses: %w", err)
	}
	for _, s := range text.podCIDRs {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			reject("--node-pod-cidrs %q is not an address range: give one like 10.244.1.0/24", s)
		}
		c.PodCIDRs = append(c.PodCIDRs, p)
	}
	if err := c.checkKernel(); err != nil {
		errs = append(errs, err)
	}
	if c.ProxyPortRange, err = redirect.ParsePortRange(text.portRange); err != nil {
		reject("--proxy-port-range: %w", err)
	}
	if c.UDPTimeout <= 0 {
		reject("--udp-timeout %v: give a duration above 0, like 250ms", c.UDPTimeout)
	}
	if c.DrainTimeout < 0 {
		reject("--drain-timeout %v: give 0 or more, like 30s", c.DrainTimeout)
	}
	if c.Loops < 1 || c.Loops > 1024 {
		reject("--loops %d: give 1 to 1024", c.Loops)
	}
	if c.Verbosity < 0 {
		reject("-v %d: give 0 or more", c.Verbosity)
	}
	c.HealthzAddress, c.MetricsAddress = text.healthz, text.metrics
	for _, f := range []struct{ flag, value string }{{"--healthz-bind-address", text.healthz}, {"--metrics-bind-address", text.metrics}} {
		if err := checkHostPort(f.value); err != nil {
			reject("%s %q: %w", f.flag, f.value, err)
		}
	}
	if c.NodeName == "" {
		if c.NodeName, err = os.Hostname(); err != nil {
			reject("the host's name cannot be read (%w): give --hostname-override", err)
		}
	}
	if !c.Cleanup && len(c.Manifests) == 0 {
		reject("nothing to serve: give --manifests with a file or folder of Services and EndpointSlices")
	}
	return errors.Join(errs...)
}

// checkKernel checks the flags of the group Kernel.
func (c *Config) checkKernel() error {
	k := c.Conntrack
	var errs []error
	if c.SyncPeriod < 100*time.Millisecond {
		errs = append(errs, fmt.Errorf("--iptables-sync-period %v: give 100ms or more", c.SyncPeriod))
	}
	for flag, n := range map[string]int32{"max-per-core": k.MaxPerCore, "min": k.Min} {
		if n < 0 {
			errs = append(errs, fmt.Errorf("--conntrack-%s %d: give 0 or more", flag, n))
		}
	}
	for flag, d := range map[string]time.Duration{"tcp-timeout-established": k.TCPEstablished,
		"tcp-timeout-close-wait": k.TCPCloseWait, "udp-timeout": k.UDP, "udp-timeout-stream": k.UDPStream} {
		if d < 0 {
			errs = append(errs, fmt.Errorf("--conntrack-%s %v: give 0 or more", flag, d))
		}
	}
	return errors.Join(errs...)
}

func checkHostPort(s string) error {
	if s == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return errors.New("give an address with a port, like 127.0.0.1:10249, or nothing for none")
	}
	if _, err := netip.ParseAddr(host); err != nil && host != "" {
		return fmt.Errorf("%q is not an IP address", host)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("%q is not a port from 0 to 65535", port)
	}
	return nil
}
