package config

import (
	"net/netip"
	"time"

	"github.com/sluice-lb/sluice/internal/netfilter/sysctl"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/redirect"
	"github.com/sluice-lb/sluice/sctp"
	"github.com/sluice-lb/sluice/udp"
)

// The modes of forwarding, as Config.Mode has them.
const (
	ModeUserspace    = "userspace"
	ModeWinUserspace = "winuserspace"
	ModeQueue        = "queue"
	ModeNFTables     = "nftables"
	ModeIPTables     = "iptables"
	ModeIPVS         = "ipvs"
	ModeAuto         = "auto"
)

// The packet filters, as DataPath.PacketFilter has them. AutoFilter is NFTables where that can steer, else IPTables.
const (
	AutoFilter = "auto"
	NFTables   = "nftables"
	IPTables   = "iptables"
)

// Config is what the program was asked to do. Parse fills and checks it; nothing
// in it is to be changed afterwards.
type Config struct {
	Action Action // what to do in place of serving, if anything

	// Warnings are sentences about flags and fields that are ignored; to be logged once.
	Warnings []string
	// File is the file of --config; empty without one.
	File string
	// Document is all that kube-proxy has a field for, the defaults filled in and checked, as
	// /configz shows it. The other fields have what is not in it, or not in this form.
	Document Document

	// Settings are the values in effect of all flags that are of use, as flags have them, to be looked at.
	Settings []Setting

	Source   Source
	Node     Node
	DataPath DataPath
	Kernel   Kernel
	Metrics  Metrics
	Log      Log
	Process  Process
	Page     Page // who may look at the page and the API of the metrics address

	AccessLog AccessLog
}

// Stdout is the file of the access log that stands for standard output.
const Stdout = "-"

// The formats of the access log.
const (
	LogJSON    = "json"
	LogTCPLog  = "tcplog"
	logFormats = LogJSON + " or " + LogTCPLog
)

// AccessLog says where connections and flows are logged that have ended, and in what form. Which, Policies say.
type AccessLog struct {
	File   string // Stdout: standard output
	Format string // LogJSON or LogTCPLog
	Sample int    // one of so many, of those that have ended as they should
}

// Page says who may look at the running process over HTTP. The unix socket of the API does not depend on it.
type Page string

// The values of Page.
const (
	PageAuto   Page = "auto"   // this host, by a loopback address
	PageAlways Page = "always" // all who reach the metrics address
	PageNever  Page = "never"
)

// Action says what the program does in place of serving. The zero value serves.
type Action struct {
	Help          bool   // print the help and exit
	Version       string // print the version and exit: "", "true" or "raw", which is more
	WriteConfigTo string // file to write Document to, and exit
	Cleanup       bool   // remove every trace of Sluice from the kernel and exit
	InitOnly      bool   // do what needs privileges and exit
}

// Source says where Services come from, and which are served.
type Source struct {
	Manifests        []string // files and folders of Services and EndpointSlices; none: they come from the API server
	Master           string   // URL of the API server, in place of the one in the kubeconfig
	ServiceProxyName string   // the Services to serve, by their label
}

// Node is this node as the cluster knows it.
type Node struct {
	Name         string         // of the Node object and in EndpointSlices
	Zone         string         // empty: that of the Node object
	PodCIDRs     []netip.Prefix // of this node's pods; empty: those of the Node object
	ClusterCIDRs []netip.Prefix // of the cluster's pods, at most one a family; empty: unknown, or not what marks them
}

// DataPath is for forwarding in user space, and says which path is the default.
type DataPath struct {
	Mode             string             // default data path: one of the Mode constants
	BindAddress      netip.Addr         // where proxy ports listen, in its family; to kernel modes the node's address
	NodePorts        NodePortAddresses  // where node ports listen
	ServiceInterface string             // gets service addresses in mode winuserspace; empty: redirect chooses
	ProxyPortRange   redirect.PortRange // ports to listen on
	UDPTimeout       time.Duration      // idle time after which a UDP flow ends; 0: as udp.Server has it
	SCTPEngine       sctp.Engine        // how SCTP is forwarded
	PacketFilter     string             // what steers: AutoFilter, NFTables or IPTables
	Loops            int                // event loops, at least 1
	UDPGSO           udp.GSO            // send UDP datagrams of equal length by one call
	MaxServiceShare  int                // percent of what Services have in common that one alone may have, 1 to 100
	MaxClientShare   int                // the same of one client address
	Outlier          lb.Outlier         // when endpoints that fail are ejected
	Policies         lb.Policies        // of Services that request none
	Stabilization    time.Duration      // how long data path auto keeps what is requested no more
	BusyPoll         time.Duration      // busy polling before a loop sleeps, up to eventloop.MaxBusyPoll; 0: never
}

// Kernel is what the kernel is asked to do and to hold.
type Kernel struct {
	SyncPeriod    time.Duration  // how often rules are verified, at least 100 ms: that of the mode
	MinSyncPeriod time.Duration  // shortest time between two writes of rules, at most SyncPeriod: that of the mode
	ExcludeCIDRs  []netip.Prefix // IPVS virtual servers in these belong to another program
	Conntrack     sysctl.Conntrack

	// RulesLifetime is how long rules match after the end of the process that has written them, whatever ended it, in
	// whole seconds; 0: until they are removed.
	RulesLifetime time.Duration

	// MarkMask is the bits of packet marks that data path queue and transparent use, at least 16 consecutive ones. The
	// bit of masquerading is not among them.
	MarkMask uint32
}

// Metrics bounds the series that the number of Services and endpoints makes more.
type Metrics struct {
	Services   int             // ports of Services with series of their own; the others are summed
	Endpoints  int             // endpoints with series of their own
	Histograms int             // ports of Services with histograms of their own; the others are summed
	Families   ServiceFamilies // which series a Service has
}

// ServiceFamilies says which series a Service has.
type ServiceFamilies string

// The values of ServiceFamilies.
const (
	BasicFamilies ServiceFamilies = "basic" // others appear with what they count first
	AllFamilies   ServiceFamilies = "all"
)

// Process is about the life of the process itself.
type Process struct {
	WindowsService bool          // run under the service manager of Windows; false elsewhere
	DrainTimeout   time.Duration // longest wait for connections at the end
	OnExit         OnExit        // what becomes of Services at the end
	HandoverSocket string        // unix socket for upgrades and take-over; empty for none
	Yes            bool          // take over without asking a terminal
	PIDFile        string        // holds the id of the serving process; empty for none
	APISocket      string        // unix socket of the API; NoSocket for none
	APIRequested   bool          // it was given, and is no default
}

// NoSocket is the path of a socket that there is not to be.
const NoSocket = "none"

// DefaultAPISocket is where the API is without a --handover-socket.
const DefaultAPISocket = "/run/sluice/" + apiSocketName

const apiSocketName = "api.sock"

// OnExit says what becomes of Services, and of clients that come, when the process ends.
type OnExit string

// The values of OnExit.
const (
	Offload OnExit = "offload" // the kernel forwards; without a way to that, clients are served until the end
	Refuse  OnExit = "refuse"  // clients are refused from the start of draining on; rules stay for the next start
	CleanUp OnExit = "cleanup" // as Refuse, and every trace is removed from the kernel in the end
)

// FromAPI reports whether Services come from the API server, and not from manifests.
func (c *Config) FromAPI() bool { return len(c.Source.Manifests) == 0 }

// The ways to detect traffic of pods, as Document.DetectLocalMode has them: by its source, or by
// the interface that it comes in by.
const (
	DetectClusterCIDR         = "ClusterCIDR"
	DetectNodeCIDR            = "NodeCIDR"
	DetectBridgeInterface     = "BridgeInterface"
	DetectInterfaceNamePrefix = "InterfaceNamePrefix"
)

// Pods returns the addresses that traffic of pods is from, as far as the command
// line and the file say so; none means those of the Node object.
func (n *Node) Pods() []netip.Prefix {
	if len(n.PodCIDRs) == 0 {
		return n.ClusterCIDRs
	}
	return n.PodCIDRs
}

// Log says what is logged, where and in what form.
type Log struct {
	Verbosity int  // 0 info, 1 and more debug
	JSON      bool // a JSON object for each line, in place of text
	// File is where the log goes in place of standard error; empty for there only.
	// Beyond MaxSize MB (0: no limit) it is truncated. AlsoStderr logs to both.
	File       string
	MaxSize    uint64
	AlsoStderr bool
}
