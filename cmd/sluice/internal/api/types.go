package api

import (
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/conditions"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/config"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/history"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/journal"
	"github.com/sluice-lb/sluice/lb"
)

// Version is that of the API, with which every path begins.
const Version = "v1"

// List is a page of a list.
type List[T any] struct {
	Items    []T    `json:"items"`
	Continue string `json:"continue,omitempty"` // of the next page, also if this has no items; empty: it is the last
}

// Index says what there is.
type Index struct {
	Version   string   `json:"version"`
	Resources []string `json:"resources"`
}

// MostConditions is how many conditions a Status names.
const MostConditions = 100

// Status is the process, and sums of what it serves.
type Status struct {
	Version      string    `json:"version"`
	Commit       string    `json:"commit,omitempty"` // empty: not known
	PID          int       `json:"pid"`
	NetNS        string    `json:"netns"` // network namespace
	Node         string    `json:"node"`
	Started      time.Time `json:"started"` // this process
	Serving      time.Time `json:"serving"` // the first process of those that have handed over to each other
	HandOvers    HandOvers `json:"handOvers"`
	Mode         string    `json:"mode"` // default data path
	Loops        int       `json:"loops"`
	Families     []string  `json:"families"`
	PacketFilter *Chosen   `json:"packetFilter,omitempty"` // none: nothing is steered
	SCTPEngine   *Chosen   `json:"sctpEngine,omitempty"`   // none: no SCTP Service has come yet
	Source       Source    `json:"source"`
	Sync         Sync      `json:"sync"`

	// Conditions are what is rejected, ignored or leads nowhere now, the first MostConditions of so many.
	Conditions     []conditions.Condition `json:"conditions"`
	ConditionCount int                    `json:"conditionCount"`

	Services    ServiceCounts `json:"services"`
	Open        Open          `json:"open"`
	Counted     Counted       `json:"counted"`
	Descriptors Descriptors   `json:"fileDescriptors"`
}

// HandOvers are those since the first process.
type HandOvers struct {
	Count  int        `json:"count"`
	Failed int        `json:"failed"` // those that were given up
	Last   *time.Time `json:"last,omitempty"`
	From   int        `json:"from,omitempty"` // process id
}

// Chosen is one of several that can be in effect.
type Chosen struct {
	Name      string `json:"name"`
	Requested bool   `json:"requested"` // by a flag; else it was detected what the host can
}

// Source is where Services come from.
type Source struct {
	Manifests []string `json:"manifests,omitempty"`
	Files     int      `json:"files,omitempty"`    // found there
	Rejected  int      `json:"rejected,omitempty"` // of these, whose present content is not applied

	APIServer string     `json:"apiServer,omitempty"`
	Contact   *time.Time `json:"contact,omitempty"` // when it has answered or sent something last
	Trouble   string     `json:"trouble,omitempty"` // what keeps it from being read now
}

// Sync is how changes are applied.
type Sync struct {
	Healthy   bool       `json:"healthy"`
	Applied   uint64     `json:"applied"` // changes
	Failures  uint64     `json:"failures"`
	Last      *time.Time `json:"last,omitempty"`
	Waiting   *time.Time `json:"waiting,omitempty"` // since when a change waits
	LastError string     `json:"lastError,omitempty"`
}

// ServiceCounts counts what is served. A Service counts once for each port and address family.
type ServiceCounts struct {
	Ports     int            `json:"ports"`
	Addresses int            `json:"addresses"`
	Endpoints int            `json:"endpoints"`
	Paths     map[string]int `json:"paths"`     // ports by the data path in effect
	Fallbacks int            `json:"fallbacks"` // ports that are not on the path requested
	Conflicts int            `json:"conflicts"` // addresses that another program has
	Short     int            `json:"short"`     // addresses that get no socket, since file descriptors are few
	Ejected   int64          `json:"ejected"`   // endpoints that get no connections since they have failed
	Drained   int            `json:"drained"`   // endpoints that an operator has drained
}

// Open is what user space has open now; clients that wait are not open.
type Open struct {
	TCP  int64 `json:"tcp"`
	UDP  int64 `json:"udp"`
	SCTP int64 `json:"sctp"`
	Held int64 `json:"held"` // clients that wait for an endpoint

	Queued int64 `json:"queued"` // clients that wait for room at one
}

// Counted are sums of the Services that there are, since each came, through hand-overs. What the kernel forwards is not
// in them, but in InKernel.
type Counted struct {
	Picks    uint64 `json:"picks"`    // endpoints chosen for connections and flows
	Failures uint64 `json:"failures"` // of these, those that failed
	Active   uint64 `json:"active"`   // now
	BytesIn  uint64 `json:"bytesIn"`
	BytesOut uint64 `json:"bytesOut"`
}

// InKernel is counted of what the kernel forwards, beside Counted: what is open by conntrack, the rest by ipvs, or by
// conntrack with --conntrack-accounting. Bytes have the headers of IP. It may be a moment old.
type InKernel struct {
	Open     uint64  `json:"open"`             // connections and flows
	Chosen   bool    `json:"chosen,omitempty"` // user space has chosen endpoints: they are picks, and may be active
	Total    *uint64 `json:"total,omitempty"`  // with those that have ended, picks excepted; none: as bytes not counted
	BytesIn  *uint64 `json:"bytesIn,omitempty"`
	BytesOut *uint64 `json:"bytesOut,omitempty"`
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
	Used  int64 `json:"used"`
	Limit int64 `json:"limit"` // 0: none
}

// ID names a port of a Service in one address family.
type ID struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Port      string `json:"port,omitempty"` // its name
	Protocol  string `json:"protocol"`
	Family    string `json:"family"`
}

// Service is a port of a Service.
type Service struct {
	ID
	Addresses []Address `json:"addresses"`
	Path      Path      `json:"path"`
	Policies  []Policy  `json:"policies,omitempty"` // in force, beyond what every Service has
	Affinity  string    `json:"affinity,omitempty"` // how long, with sessionAffinity
	Endpoints int       `json:"endpoints"`          // that there are
	Eligible  int       `json:"eligible"`           // of these, those that get new connections
	Ejected   int       `json:"ejected,omitempty"`  // or whose check fails
	Counted             // what is counted of it
	Kernel    *InKernel `json:"kernel,omitempty"` // none: the kernel forwards nothing of it
	Refused   Refused   `json:"refused"`
	Held      uint64    `json:"held,omitempty"`   // clients that wait for an endpoint
	Queued    uint64    `json:"queued,omitempty"` // clients that wait for room at an endpoint
	Clients   int       `json:"affinityClients,omitempty"`
	Wrong     []string  `json:"conditions,omitempty"` // what is ignored of it, or leads nowhere
}

// Address is one at which a Service is served.
type Address struct {
	Address string   `json:"address"`
	Kind    string   `json:"kind"`
	Local   bool     `json:"local,omitempty"`   // endpoints of this node only
	Sources []string `json:"sources,omitempty"` // the only clients
}

// Path is what forwards.
type Path struct {
	Requested string `json:"requested"`
	Effective string `json:"effective"`        // empty: not applied by this process yet
	Reason    string `json:"reason,omitempty"` // in a word: mode, annotation, policy, cost, host, stabilization or exit
	Why       string `json:"why,omitempty"`
	Fallback  string `json:"fallback,omitempty"` // why it is not the one requested
}

// Policy is one that is in force, or requested and not in force.
type Policy struct {
	Name    string `json:"name"`
	Value   string `json:"value"`
	From    string `json:"from"`              // annotation or flag
	Missing string `json:"missing,omitempty"` // why the data path does not have it
}

// Refused counts connections and first datagrams.
type Refused struct {
	NoEndpoint      uint64 `json:"noEndpoint"`
	NoLocalEndpoint uint64 `json:"noLocalEndpoint"`
	NotAllowed      uint64 `json:"notAllowed"`
	OverShare       uint64 `json:"overShare"`
	Limited         uint64 `json:"limited"` // by max-connections and the like
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
	Service     ID     `json:"service"`
	Address     string `json:"address"`
	State       string `json:"state"`
	Reason      string `json:"reason"`   // of the state
	Eligible    bool   `json:"eligible"` // it gets new connections
	Ready       bool   `json:"ready"`
	Serving     bool   `json:"serving"`
	Terminating bool   `json:"terminating"`
	Local       bool   `json:"local"` // on this node
	NodeHint    string `json:"nodeHint,omitempty"`
	ZoneHint    string `json:"zoneHint,omitempty"`
	Weight      uint16 `json:"weight"`

	Ejection *Ejection `json:"ejection,omitempty"`
	Check    string    `json:"failingCheck,omitempty"` // why its active check fails
	Counted
	Kernel *InKernel `json:"kernel,omitempty"`
}

// Ejection says why an endpoint gets no new connections for a time.
type Ejection struct {
	Since  time.Time `json:"since"`
	Until  time.Time `json:"until"`
	Times  int64     `json:"times"` // in a row
	Reason string    `json:"reason"`
}

// Connection is one that is open, an association of SCTP, or a flow of UDP. Of what the kernel forwards conntrack says
// less: bytes, with the headers of IP, only if it counts, and the age only if it notes times (--conntrack-accounting).
type Connection struct {
	Protocol string `json:"protocol"`
	Path     string `json:"path"` // data path; kernel: a kernel path that its Service has left
	Client   string `json:"client"`
	Address  string `json:"address,omitempty"`  // that the client has asked for
	Service  *ID    `json:"service,omitempty"`  // none: it has gone
	Endpoint string `json:"endpoint,omitempty"` // none yet
	State    string `json:"state"`
	Loop     *int   `json:"loop,omitempty"` // none: the kernel forwards it

	Age        *float64 `json:"ageSeconds,omitempty"`  // none: it is not known
	Idle       *float64 `json:"idleSeconds,omitempty"` // none: it is not known
	BytesIn    *uint64  `json:"bytesIn,omitempty"`     // none: they are not counted
	BytesOut   *uint64  `json:"bytesOut,omitempty"`
	PacketsIn  uint64   `json:"packetsIn,omitempty"` // that the kernel has counted
	PacketsOut uint64   `json:"packetsOut,omitempty"`

	Failed      int     `json:"failedAttempts,omitempty"`
	RTT         float64 `json:"rttSeconds,omitempty"` // to the client
	Retransmits uint32  `json:"retransmits,omitempty"`
}

// Talker is what is open of one client address.
type Talker struct {
	Address     string  `json:"address"`
	Connections int     `json:"connections"` // and flows
	BytesIn     uint64  `json:"bytesIn"`     // of these
	BytesOut    uint64  `json:"bytesOut"`
	Services    int     `json:"services"` // 16: or more
	Oldest      float64 `json:"oldestSeconds"`

	services map[lb.Name]struct{}
}

// Talkers are the clients with the most.
type Talkers struct {
	Items   []Talker `json:"items"`
	Clients int      `json:"clients"`           // that there are
	Others  int      `json:"others,omitempty"`  // connections of clients beyond 65,536
	Partial bool     `json:"partial,omitempty"` // time was up
}

// Drain is what an operator has drained.
type Drain struct {
	Endpoint  string     `json:"endpoint"`            // address, with or without a port, or node/NAME
	Namespace string     `json:"namespace,omitempty"` // of the only Service whose endpoint it is
	Name      string     `json:"name,omitempty"`
	Deadline  *time.Time `json:"deadline,omitempty"` // when connections are reset; none: they stay
	By        string     `json:"by,omitempty"`       // who has asked for it
	Endpoints int        `json:"endpoints"`          // that it is of now, counted once for each port of a Service
}

// Event is something that has happened, or a change.
type Event = journal.Entry

// Sample is what the node, or a Service, has done in the seconds before a moment.
type Sample = history.Sample

// Events are a list of them, and the number of the last that there was, be it in the list or not.
type Events struct {
	List[Event]
	Last uint64 `json:"last"`
}

// Setting is a value in force.
type Setting = config.Setting

// Explanation says what becomes of a client that asks an address.
type Explanation struct {
	Protocol string  `json:"protocol"`
	Address  string  `json:"address"`
	Client   string  `json:"client,omitempty"`
	Service  *ID     `json:"service,omitempty"` // none has the address
	Path     *Path   `json:"path,omitempty"`
	Filter   *Chosen `json:"packetFilter,omitempty"`
	Engine   *Chosen `json:"sctpEngine,omitempty"`

	Policies []Policy `json:"policies,omitempty"`
	Text     string   `json:"text"` // lines for people: which endpoint, and why
}
