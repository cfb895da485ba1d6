package agent

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/policies"
	"github.com/sluice-lb/sluice/lb"
)

// Path is what forwards a Service.
type Path uint8

// The paths. None is the zero Path, and that of a Service that no other can forward.
const (
	None Path = iota
	Userspace
	Queue
	NFTables
	IPTables
	IPVS
	pathCount
)

var pathNames = [pathCount + 1]string{"none", "userspace", "queue", "nftables", "iptables", "ipvs", "auto"}

// kernelPaths are the paths of engines, in the order in which a packet meets them.
var kernelPaths = []Path{Queue, NFTables, IPTables, IPVS}

// anyService are the paths of Services whose own there is not, the first that is available. Queue is for those that
// request it, and for its mode.
var anyService = []Path{Userspace, NFTables, IPTables, IPVS}

// Paths returns all that a Service may be on.
func Paths() []Path { return append([]Path{Userspace}, kernelPaths...) }

// String returns the name that --proxy-mode and the annotation sluice.io/data-path
// have for the path or for Auto, or "none".
func (p Path) String() string { return pathNames[p] }

// InKernel reports whether it is the path of an engine.
func (p Path) InKernel() bool { return slices.Contains(kernelPaths, p) }

// ParsePath reads what String writes but "none".
func ParsePath(s string) (Path, bool) {
	p := slices.Index(pathNames[:], s)
	return Path(max(p, 0)), p > 0
}

// Choice is the path of one Service, and why it is that.
type Choice struct {
	Path     Path
	Reason   Reason
	Why      string // what asked for the path
	Fallback string // why it is not the path that was requested; empty if it is

	Writing   bool // until a data path is written, the port does not have all that is requested
	Offloaded bool // user space forwards it, but this process ends (Agent.Offload)

	auto  bool  // Auto has chosen
	until int64 // when it gets to a cheaper path if nothing requests this one any more; 0: that is not so
}

// Reason is what has decided the path of a Service, in a word: a label of metrics, and a field of the API.
type Reason uint8

// The reasons.
const (
	ByMode     Reason = iota
	ByName            // its annotation sluice.io/data-path names the path
	ByPolicy          // another path lacks what is requested
	ByCost            // Auto: it requests nothing that a cheaper path lacks
	ByHost            // this host does not have the path that would be taken
	BySettling        // Auto: a cheaper path would do, but not for long enough
	ByEnd             // this process ends
)

var reasonNames = [...]string{"mode", "annotation", "policy", "cost", "host", "stabilization", "exit"}

// String returns the word.
func (r Reason) String() string { return reasonNames[r] }

// abilities says which paths there are for the Services of one family: why not, or nil.
type abilities [pathCount + 1]error

// userspaceSCTP is the place in abilities of why user space does not forward SCTP.
const userspaceSCTP = pathCount

// all reports whether there is a path for every Service.
func (can *abilities) all() bool {
	kernel := slices.ContainsFunc(anyService[1:], func(path Path) bool { return can[path] == nil })
	return kernel || can[Userspace] == nil && can[userspaceSCTP] == nil
}

var (
	errNoFamily = errors.New("its address family is not served on this node")
	errNoEngine = errors.New("this program has no such engine")
	errSCTP     = errors.New("SCTP is not forwarded in user space")
)

// abilities returns what this host can. sctp says that user space forwards SCTP.
func (f *Family) abilities(sctp bool, engines *[pathCount]forwarder) abilities {
	if !f.served() {
		var none abilities
		for _, path := range Paths() {
			none[path] = errNoFamily
		}
		return none
	}
	var can abilities
	if !sctp {
		can[userspaceSCTP] = errSCTP
	}
	for _, path := range kernelPaths {
		can[path] = engines[path].failed
		if f.Engines[path] == nil {
			can[path] = cmp.Or(f.No[path], errNoEngine)
		}
	}
	return can
}

// choose decides the path of a Service: this is the only place. What its annotation requests takes precedence over the
// mode, if it is a path and this host has it; so does user space where it requests a policy that the mode does not
// have. A mode that this host does not have is userspace. What user space cannot forward, the kernel may. given is what
// is given for all Services, which Auto looks at.
func choose(s *lb.Service, mode Path, of *abilities, given *lb.Policies) Choice {
	can := of.of(s)
	requested, named := ParsePath(s.Requests().DataPath)
	if !named {
		requested = mode
	}
	if requested == Auto {
		if c := cheapest(s, &can, given); c.Path != None {
			return c
		}
		return firstOf(&can, Choice{Fallback: "no data path of auto is available"})
	}
	if policy := policies.NeedsUserspace(s); policy != nil && can[Userspace] == nil {
		c := Choice{Path: Userspace, Reason: ByPolicy, Why: "annotation " + policy.Annotation()}
		if named && requested != Userspace {
			c.Fallback = fmt.Sprintf("data path %s has no %s", requested, policy.Word)
		}
		return c
	}
	c := Choice{Path: mode, Why: "--proxy-mode"}
	if policy := policies.KeptFrom(s, mode.String()); policy != nil && !named && can[Userspace] == nil {
		return Choice{Path: Userspace, Reason: ByPolicy,
			Why: fmt.Sprintf("annotation %s, which data path %s does not have", policy.Annotation(), mode)}
	}
	if named {
		if can[requested] == nil {
			return Choice{Path: requested, Reason: ByName, Why: "annotation sluice.io/data-path"}
		}
		c = Choice{Path: Userspace, Reason: ByHost, Why: "--proxy-mode",
			Fallback: fmt.Sprintf("data path %s is not available: %v", requested, can[requested])}
	}
	if can[c.Path] == nil {
		return c
	}
	if c.Fallback == "" {
		c.Fallback = fmt.Sprintf("data path %s is not available: %v", c.Path, can[c.Path])
	}
	return firstOf(&can, c)
}

// firstOf completes the choice of a Service whose path is not available.
func firstOf(can *abilities, c Choice) Choice {
	c.Reason = ByHost
	for _, path := range anyService {
		if can[path] == nil {
			c.Path, c.Why = path, "the first that is available"
			return c
		}
	}
	c.Path, c.Why = None, "no data path is available"
	return c
}

// of returns what there is for one Service.
func (can *abilities) of(s *lb.Service) abilities {
	its := *can
	if s.Protocol == lb.SCTP && its[Userspace] == nil {
		its[Userspace] = its[userspaceSCTP]
	}
	return its
}

// Choose decides the path of a Service in a mode, on a host that has every path, where nothing is given for all
// Services.
func Choose(s *lb.Service, mode Path) Choice { return choose(s, mode, &everything, new(lb.Policies)) }

// family is the position of a family in arrays.
func family(ipv6 bool) int {
	if ipv6 {
		return 1
	}
	return 0
}

// Fallback is a Service that is not on the data path that was requested for it.
type Fallback struct {
	Service   lb.ID
	Requested string // by its annotation, or the mode
	Path      Path   // that it is on instead
	Reason    string // empty: it is over, the Service is on the requested path or gone
}

// fallback returns what is to be reported of a piece, if anything is: not what all Services
// have in common, which is reported where it happens.
func (p *piece) fallback(mode Path) (Fallback, bool) {
	if p.choice.Fallback == "" || p.service.Requests().DataPath == "" && p.service.Protocol != lb.SCTP {
		return Fallback{}, false
	}
	f := Fallback{p.service.ID, p.service.Requests().DataPath, p.choice.Path, p.choice.Fallback}
	if f.Requested == "" {
		f.Requested = mode.String()
	}
	return f, true
}
