package api

import (
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/config"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/history"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/journal"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/conditions"
	"github.com/sluice-lb/sluice/lb"
)

// Version is that of the API, with which every path begins.
const Version = "v1"

// List is a page of a list.
type List[T any] struct {
	Items    []T    `json:"items"`              // of this page
	Continue string `json:"continue,omitempty"` // leads to the next page; empty: this is the last
}

// Index says what there is.
type Index struct {
	Version   string   `json:"version"`   // of the API
	Resources []string `json:"resources"` // the names of the routes below the version
}

// MostConditions is how many conditions a Status names; the comment of Status.Conditions says the number, too.
const MostConditions = 100

// Status is the process, and sums of what it serves.
type Status struct {
	Version      string    `json:"version"`                // of Sluice
	Commit       string    `json:"commit,omitempty"`       // that was built; empty: unknown
	PID          int       `json:"pid"`                    // process id
	NetNS        string    `json:"netns"`                  // the network namespace
	Node         string    `json:"node"`                   // the name of this node
	Started      time.Time `json:"started"`                // when this process started
	Serving      time.Time `json:"serving"`                // when the first process of this chain began to serve
	HandOvers    HandOvers `json:"handOvers"`              // since the first process
	Mode         string    `json:"mode"`                   // the default data path
	Loops        int       `json:"loops"`                  // how many event loops there are
	Families     []string  `json:"families"`               // the address families that are served
	PacketFilter *Chosen   `json:"packetFilter,omitempty"` // what steers packets; none: nothing is steered
	SCTPEngine   *Chosen   `json:"sctpEngine,omitempty"`   // what forwards SCTP; none: there was no SCTP Service yet
	Source       Source    `json:"source"`                 // where Services come from
	Sync         Sync      `json:"sync"`                   // how changes are applied

	Conditions     []conditions.Condition `json:"conditions"`     // the first 100 that last now
	ConditionCount int                    `json:"conditionCount"` // how many conditions there are

	Services    ServiceCounts `json:"services"`        // what is served
	Open        Open          `json:"open"`            // what is open now
	Counted     Counted       `json:"counted"`         // sums of the Services that exist now
	Descriptors Descriptors   `json:"fileDescriptors"` // file descriptors of connections and flows
}

// HandOvers are those since the first process.
type HandOvers struct {
	Count  int        `json:"count"`          // how many succeeded
	Failed int        `json:"failed"`         // how many were given up
	Last   *time.Time `json:"last,omitempty"` // when the last one was
	From   int        `json:"from,omitempty"` // id of the process that handed over
}

// Chosen is one of several that can be in effect.
type Chosen struct {
	Name      string `json:"name"`      // what is in effect
	Requested bool   `json:"requested"` // true: a flag requests it; false: Sluice detected what the host supports
}

// Source is where Services come from.
type Source struct {
	Manifests []string `json:"manifests,omitempty"` // the paths of --manifests
	Files     int      `json:"files,omitempty"`     // how many files were found there
	Rejected  int      `json:"rejected,omitempty"`  // how many of them have content that is not applied

	APIServer string     `json:"apiServer,omitempty"` // its address
	Contact   *time.Time `json:"contact,omitempty"`   // when it last answered or sent a change
	Trouble   string     `json:"trouble,omitempty"`   // why it cannot be read now
}

// Sync is how changes are applied.
type Sync struct {
	Healthy   bool       `json:"healthy"`             // whether changes are applied
	Applied   uint64     `json:"applied"`             // how many changes were applied
	Failures  uint64     `json:"failures"`            // how many attempts failed
	Last      *time.Time `json:"last,omitempty"`      // when the last change was applied
	Waiting   *time.Time `json:"waiting,omitempty"`   // since when a change waits
	LastError string     `json:"lastError,omitempty"` // of the last attempt
}

// ServiceCounts counts what is served. A Service counts once for each port and address family.
type ServiceCounts struct {
	Ports     int            `json:"ports"`     // ports of Services, each once per address family
	Addresses int            `json:"addresses"` // addresses with a port
	Endpoints int            `json:"endpoints"` // endpoints of all ports
	Paths     map[string]int `json:"paths"`     // ports by data path
	Fallbacks int            `json:"fallbacks"` // ports that are not on the data path that they request
	Conflicts int            `json:"conflicts"` // addresses that another program uses
	Short     int            `json:"short"`     // addresses without a socket because file descriptors are few
	Ejected   int64          `json:"ejected"`   // endpoints that get no new connections because they failed
	Drained   int            `json:"drained"`   // endpoints that an operator drained
}

// Open is what user space has open now; clients that wait are not open.
type Open struct {
	TCP  int64 `json:"tcp"`  // connections
	UDP  int64 `json:"udp"`  // flows
	SCTP int64 `json:"sctp"` // associations
	Held int64 `json:"held"` // clients that wait for an endpoint

	Queued int64 `json:"queued"` // clients that wait for room at an endpoint
}

// Counted are sums of the Services that there are, since each came, through hand-overs. What the kernel forwards is not
// in them, but in InKernel.
type Counted struct {
	Picks    uint64 `json:"picks"`    // how often an endpoint was chosen for a connection or flow
	Failures uint64 `json:"failures"` // how many of these failed
	Active   uint64 `json:"active"`   // connections and flows that are open now
	BytesIn  uint64 `json:"bytesIn"`  // bytes from clients
	BytesOut uint64 `json:"bytesOut"` // bytes to clients
}

// InKernel is counted of what the kernel forwards, beside Counted: what is open by conntrack, the rest by ipvs, or by
// conntrack with --conntrack-accounting. Bytes have the headers of IP. It may be a moment old.
type InKernel struct {
	Open     uint64  `json:"open"`               // connections and flows that are open now
	Chosen   bool    `json:"chosen,omitempty"`   // true: user space chose the endpoints, so picks have them
	Total    *uint64 `json:"total,omitempty"`    // all so far, without picks; none: not counted
	BytesIn  *uint64 `json:"bytesIn,omitempty"`  // with IP headers; none: not counted
	BytesOut *uint64 `json:"bytesOut,omitempty"` // with IP headers; none: not counted
}

// Plus returns what user space and the kernel have counted together. False: the kernel counts only what is open.
func (c Counted) Plus(k *InKernel) (all Counted, whole bool) {
	if k == nil {
		return c, true
	}
	if k.Chosen {
		c.Active = max(c.Active, k.Open)
	} else {
		c.Active += k.Open
	}
	if k.Total == nil {
		return c, false
	}
	c.Picks, c.BytesIn, c.BytesOut = c.Picks+*k.Total, c.BytesIn+*k.BytesIn, c.BytesOut+*k.BytesOut
	return c, true
}

// Descriptors are file descriptors of connections and flows.
type Descriptors struct {
	Used  int64 `json:"used"`  // how many are used
	Limit int64 `json:"limit"` // how many may be used; 0: no limit
}

// ID names a port of a Service in one address family.
type ID struct {
	Namespace string `json:"namespace"`      // of the Service
	Name      string `json:"name"`           // of the Service
	Port      string `json:"port,omitempty"` // the name of the port
	Protocol  string `json:"protocol"`       // TCP, UDP or SCTP
	Family    string `json:"family"`         // IPv4 or IPv6
}

// Service is a port of a Service.
type Service struct {
	ID
	Addresses []Address `json:"addresses"`           // where it is served
	Path      Path      `json:"path"`                // what forwards it
	Policies  []Policy  `json:"policies,omitempty"`  // in effect beyond the defaults, or missing
	Affinity  string    `json:"affinity,omitempty"`  // how long a client keeps its endpoint, with sessionAffinity
	Endpoints int       `json:"endpoints"`           // how many it has
	Eligible  int       `json:"eligible"`            // how many of them get new connections
	Unhealthy int       `json:"unhealthy,omitempty"` // endpoints that are ejected or fail their probe
	Counted             // what is counted of it
	Kernel    *InKernel `json:"kernel,omitempty"`          // what the kernel counts; none: it forwards nothing
	Refused   Refused   `json:"refused"`                   // connections and first datagrams that were refused
	Held      uint64    `json:"held,omitempty"`            // clients that wait for an endpoint
	Queued    uint64    `json:"queued,omitempty"`          // clients that wait for room at an endpoint
	Clients   int       `json:"affinityClients,omitempty"` // how many clients session affinity remembers
	Wrong     []string  `json:"conditions,omitempty"`      // what is ignored of it, or leads nowhere
}

// Address is one at which a Service is served.
type Address struct {
	Address string   `json:"address"`           // with its port
	Kind    string   `json:"kind"`              // cluster IP, node port, load-balancer IP or external IP
	Local   bool     `json:"local,omitempty"`   // true: only endpoints of this node
	Sources []string `json:"sources,omitempty"` // the only clients that may connect
}

// Path is what forwards.
type Path struct {
	Requested string `json:"requested"`          // the data path that is requested
	Effective string `json:"effective"`          // the data path in effect; empty: not applied yet
	Reason    string `json:"reason,omitempty"`   // mode, annotation, policy, cost, host, stabilization or exit
	Why       string `json:"why,omitempty"`      // the reason in words
	Fallback  string `json:"fallback,omitempty"` // why it is not the one that is requested
	Writing   bool   `json:"writing,omitempty"`  // the kernel's rules for it are being written: it waits for them
}

// Policy is one that is in force, or requested and not in force.
type Policy struct {
	Name    string `json:"name"`              // of the annotation, without its prefix
	Value   string `json:"value"`             // that is requested
	From    string `json:"from"`              // annotation or flag
	Missing string `json:"missing,omitempty"` // why the data path does not have it; empty: it is in effect
}

// Refused counts connections and first datagrams.
type Refused struct {
	NoEndpoint      uint64 `json:"noEndpoint"`      // no endpoint was ready
	NoLocalEndpoint uint64 `json:"noLocalEndpoint"` // no endpoint of this node was ready, with policy Local
	NotAllowed      uint64 `json:"notAllowed"`      // the client is not in loadBalancerSourceRanges
	OverShare       uint64 `json:"overShare"`       // the Service or the client had its share
	Limited         uint64 `json:"limited"`         // by max-connections and the other limits
}

// Sum is how many in all.
func (r Refused) Sum() uint64 {
	return r.NoEndpoint + r.NoLocalEndpoint + r.NotAllowed + r.OverShare + r.Limited
}

// The states of endpoints.
const (
	Ready        = "ready"
	NotReady     = "not-ready"
	Terminating  = "terminating"
	Ejected      = "ejected"
	CheckFailing = "check-failing"
	Maintenance  = "maintenance"
	Drained      = "drained" // by an operator
	Loop         = "loop"
	Gone         = "gone" // no longer of the Service, with connections that are still open
)

// Endpoint is one of a port of a Service.
type Endpoint struct {
	Service ID     `json:"service"` // the port that it belongs to
	Address string `json:"address"` // with its port
	// State is ready, not-ready, terminating, ejected, check-failing, maintenance, drained, loop or gone.
	State       string `json:"state"`
	Reason      string `json:"reason"`             // why it has this state
	Eligible    bool   `json:"eligible"`           // whether it gets new connections
	Ready       bool   `json:"ready"`              // of its EndpointSlice
	Serving     bool   `json:"serving"`            // of its EndpointSlice
	Terminating bool   `json:"terminating"`        // of its EndpointSlice
	Local       bool   `json:"local"`              // whether it is on this node
	NodeHint    string `json:"nodeHint,omitempty"` // the node that it is for
	ZoneHint    string `json:"zoneHint,omitempty"` // the zone that it is for
	Weight      uint16 `json:"weight"`             // its share beside other endpoints

	Ejection *Ejection `json:"ejection,omitempty"`     // why it gets no new connections
	Check    string    `json:"failingCheck,omitempty"` // why its active check fails
	Counted
	Kernel *InKernel `json:"kernel,omitempty"` // what the kernel counts of it
}

// Ejection says why an endpoint gets no new connections for a time.
type Ejection struct {
	Since  time.Time `json:"since"`  // when it began
	Until  time.Time `json:"until"`  // when it ends at the latest
	Times  int64     `json:"times"`  // how many there were in a row
	Reason string    `json:"reason"` // the last failure
}

// Connection is one that is open, an association of SCTP, or a flow of UDP. Of what the kernel forwards conntrack says
// less: bytes, with the headers of IP, only if it counts, and the age only if it notes times (--conntrack-accounting).
type Connection struct {
	Protocol string `json:"protocol"`           // TCP, UDP or SCTP
	Path     string `json:"path"`               // the data path; kernel: a kernel path that its Service has left
	Client   string `json:"client"`             // its address and port
	Address  string `json:"address,omitempty"`  // that the client asked for
	Service  *ID    `json:"service,omitempty"`  // none: it is gone
	Endpoint string `json:"endpoint,omitempty"` // none: none is chosen yet
	State    string `json:"state"`              // as sluice connections shows it
	Loop     *int   `json:"loop,omitempty"`     // its event loop; none: the kernel forwards it

	Age        *float64 `json:"ageSeconds,omitempty"`  // none: unknown
	Idle       *float64 `json:"idleSeconds,omitempty"` // since the last byte; none: unknown
	BytesIn    *uint64  `json:"bytesIn,omitempty"`     // from the client; none: not counted
	BytesOut   *uint64  `json:"bytesOut,omitempty"`    // to the client; none: not counted
	PacketsIn  uint64   `json:"packetsIn,omitempty"`   // that the kernel counted
	PacketsOut uint64   `json:"packetsOut,omitempty"`  // that the kernel counted

	Failed      int     `json:"failedAttempts,omitempty"` // endpoints that did not accept
	RTT         float64 `json:"rttSeconds,omitempty"`     // to the client
	Retransmits uint32  `json:"retransmits,omitempty"`    // segments that the kernel sent again
}

// Talker is what is open of one client address.
type Talker struct {
	Address     string  `json:"address"`       // of the client
	Connections int     `json:"connections"`   // open connections, associations and flows
	BytesIn     uint64  `json:"bytesIn"`       // bytes of these from the client
	BytesOut    uint64  `json:"bytesOut"`      // bytes of these to the client
	Services    int     `json:"services"`      // how many Services they are for; 16: 16 or more
	Oldest      float64 `json:"oldestSeconds"` // age of the oldest

	services map[lb.Name]struct{}
}

// Talkers are the clients with the most.
type Talkers struct {
	Items   []Talker `json:"items"`             // the clients with the most
	Clients int      `json:"clients"`           // how many clients there are
	Others  int      `json:"others,omitempty"`  // connections of clients beyond 65,536
	Partial bool     `json:"partial,omitempty"` // true: the time for the answer was up
}

// Drain is what an operator has drained.
type Drain struct {
	Endpoint  string     `json:"endpoint"`            // an address, with or without a port, or node/NAME
	Namespace string     `json:"namespace,omitempty"` // of the only Service that is drained; empty: all
	Name      string     `json:"name,omitempty"`      // of that Service
	Deadline  *time.Time `json:"deadline,omitempty"`  // when connections are reset; none: they stay
	By        string     `json:"by,omitempty"`        // who asked for it
	Endpoints int        `json:"endpoints"`           // that it drains now, each once per port of a Service
}

// Event is something that has happened, or a change.
type Event = journal.Entry

// Sample is what the node, or a Service, has done in the seconds before a moment.
type Sample = history.Sample

// Events are a list of them, and the number of the last that there was, be it in the list or not.
type Events struct {
	List[Event]
	Last uint64 `json:"last"` // the number of the last event, in the list or not
}

// Setting is a value in force.
type Setting = config.Setting

// Explanation says what becomes of a client that asks an address.
type Explanation struct {
	Protocol string  `json:"protocol"`               // that is asked
	Address  string  `json:"address"`                // that is asked
	Client   string  `json:"client,omitempty"`       // that asks
	Service  *ID     `json:"service,omitempty"`      // none: no Service has the address
	Path     *Path   `json:"path,omitempty"`         // the data path
	Filter   *Chosen `json:"packetFilter,omitempty"` // what steers packets
	Engine   *Chosen `json:"sctpEngine,omitempty"`   // what forwards SCTP

	Policies []Policy `json:"policies,omitempty"` // of the Service
	Text     string   `json:"text"`               // lines for people: which endpoint, and why
}
