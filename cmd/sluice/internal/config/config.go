package config

import (
	"net/netip"
	"time"

	componentconfig "k8s.io/component-base/config"

	"github.com/sluice-lb/sluice/internal/netfilter/conntrack"
	"github.com/sluice-lb/sluice/redirect"
	"github.com/sluice-lb/sluice/sctp"
)

// The modes of forwarding, as Config.Mode has them.
const (
	ModeUserspace    = "userspace"
	ModeWinUserspace = "winuserspace"
	ModeIPTables     = "iptables"
	ModeIPVS         = "ipvs"
)

// Config is what the program was asked to do. Parse fills and checks it; nothing
// in it is to be changed afterwards.
type Config struct {
	Action Action // what to do in place of serving, if anything

	// Warnings are sentences about flags and fields that are ignored; to be logged once.
	Warnings []string
	// File is the file of --config; empty without one.
	File string
	// Document is all that kube-proxy has a field for, the defaults filled in, as
	// /configz shows it.
	Document Document

	Source   Source
	Node     Node
	DataPath DataPath
	Kernel   Kernel
	HTTP     HTTP
	Log      Log
	Process  Process
}

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
	API              API      // how to reach the API server
	ServiceProxyName string   // the Services to serve, by their label
}

// Node is this node as the cluster knows it.
type Node struct {
	Name        string         // of the Node object and in EndpointSlices
	Zone        string         // empty: that of the Node object
	PodCIDRs    []netip.Prefix // of this node's pods; empty: those of the Node object
	DetectLocal DetectLocal    // what else marks traffic as sent by a pod
}

// DataPath is for forwarding in user space, and says which path is the default.
type DataPath struct {
	Mode             string             // default data path: one of the Mode constants
	BindAddress      netip.Addr         // where proxy ports listen, in its family; to kernel modes the node's address
	NodePorts        NodePortAddresses  // where node ports listen
	ServiceInterface string             // gets service addresses in mode winuserspace; empty: redirect chooses
	ProxyPortRange   redirect.PortRange // ports to listen on
	UDPTimeout       time.Duration      // idle time after which a UDP flow ends, above 0
	SCTPEngine       sctp.Engine        // how SCTP is forwarded
	Loops            int                // event loops, at least 1
	UDPGSO           bool               // send UDP datagrams of equal length by one call
	BusyPoll         time.Duration      // busy polling before a loop sleeps, up to eventloop.MaxBusyPoll; 0: never
}

// Kernel is what the kernel is asked to do and to hold.
type Kernel struct {
	SyncPeriod    time.Duration // how often rules are verified, at least 100 ms: that of the mode
	MinSyncPeriod time.Duration // shortest time between two writes of rules, at most SyncPeriod: that of the mode
	IPTables      IPTables
	IPVS          IPVS
	Conntrack     conntrack.Settings // settings of the connection tracking table
}

// HTTP says what is served over HTTP, and where.
type HTTP struct {
	HealthzAddress string // IP:port, or empty for none
	MetricsAddress string // IP:port, or empty for none
	BindHardFail   bool   // end if one of the two cannot be listened on
	Profiling      bool   // serve /debug/pprof at MetricsAddress
}

// Process is about the life of the process itself.
type Process struct {
	WindowsService bool          // run under the service manager of Windows; false elsewhere
	DrainTimeout   time.Duration // longest wait for connections at the end
	CleanupOnExit  bool          // remove every trace from the kernel at the end
	HandoverSocket string        // unix socket for upgrades and take-over; empty for none
	PIDFile        string        // holds the id of the serving process; empty for none
	OOMScoreAdj    int           // of this process, -1000 to 1000 (proc_pid_oom_score_adj(5))
}

// API says how the API server of Kubernetes is reached.
type API struct {
	// Client is the client of kube-proxy's clientConnection. An empty Kubeconfig and
	// an empty Master together mean the service account of the pod that we run in.
	// QPS below 0 means no limit.
	Client componentconfig.ClientConnectionConfiguration
	// Master is the URL of the API server, in place of the one in the kubeconfig.
	Master string
	// SyncPeriod is how often informers hand out everything again, above 0.
	SyncPeriod time.Duration
}

// FromAPI reports whether Services come from the API server, and not from manifests.
func (c *Config) FromAPI() bool { return len(c.Source.Manifests) == 0 }

// IPTables is for forwarding by iptables rules of the kernel, and for what
// forwarding by IPVS does with such rules.
type IPTables struct {
	MasqueradeAll      bool // translate the source of all that is sent to cluster IPs
	MasqueradeBit      int  // of a packet's mark that asks for that, 0 to 31
	LocalhostNodePorts bool // node ports are reached on 127.0.0.1 too (route_localnet)
}

// IPVS is for forwarding by the kernel's IPVS.
type IPVS struct {
	Scheduler    string         // of Services that request none; empty: rr
	ExcludeCIDRs []netip.Prefix // virtual servers in these belong to another program
	StrictARP    bool           // arp_ignore 1 and arp_announce 2

	// Idle times of connections; 0 leaves the kernel's as they are.
	TCPTimeout, TCPFinTimeout, UDPTimeout time.Duration
}

// The ways to detect traffic of pods, as DetectLocal.Mode has them.
const (
	DetectClusterCIDR         = "ClusterCIDR"
	DetectNodeCIDR            = "NodeCIDR"
	DetectBridgeInterface     = "BridgeInterface"
	DetectInterfaceNamePrefix = "InterfaceNamePrefix"
)

// DetectLocal says which traffic is from pods, rather than from outside.
type DetectLocal struct {
	Mode            string         // one of the Detect constants
	ClusterCIDRs    []netip.Prefix // ClusterCIDR: its source is in one of these, at most one a family; none: unknown
	Bridge          string         // BridgeInterface: it comes in by this interface
	InterfacePrefix string         // InterfaceNamePrefix: by one whose name begins so
}

// Pods returns the addresses that traffic of pods is from, as far as the command
// line and the file say so; none means those of the Node object.
func (n *Node) Pods() []netip.Prefix {
	if len(n.PodCIDRs) == 0 && n.DetectLocal.Mode == DetectClusterCIDR {
		return n.DetectLocal.ClusterCIDRs
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
