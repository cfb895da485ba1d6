package agent

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/redirect"
)

const (
	// retryMin and retryMax bound the wait before a change that failed is tried again;
	// it doubles from one to the other.
	retryMin = time.Second
	retryMax = 30 * time.Second

	// sweepEvery is how often expired affinity is forgotten. It has no effect but
	// on memory.
	sweepEvery = time.Minute

	// verifyEvery is Agent.VerifyEvery unless it is set: kube-proxy's sync period.
	verifyEvery = 30 * time.Second

	// maxTriggers bounds Changes.Triggers of changes that cannot be applied for long.
	maxTriggers = 10_000
)

// Steerer makes packets for frontends of one address family arrive at proxy ports
// (redirect.IPTables).
type Steerer interface {
	// Sync steers exactly what the plan says, and does not keep the plan. After an error
	// it may have done a part.
	Sync(context.Context, redirect.Plan) error
	// Verify reports whether what the last Sync made is still there.
	Verify(context.Context) (bool, error)
}

// Engine forwards Services of one address family in the kernel
// (kernelmodes/iptables.Engine, kernelmodes/ipvs.Engine).
type Engine interface {
	// Sync forwards the Services as the delta says from now on. The Services are kept. After
	// an error the next Sync, with an empty delta too, writes everything.
	Sync(context.Context, lb.Delta, lb.Node) error
	// Verify reports whether what the last Sync made is still there.
	Verify(context.Context) (bool, error)
	// Clients returns which backends it remembers the clients of a Service with affinity
	// at, the longest ago first, given the time on the clock of lb.Client.LastUsed.
	Clients(context.Context, *lb.Service, int64) ([]lb.Client, error)
	// Remember sends clients where they were. An error that wraps errors.ErrUnsupported
	// says that it never can.
	Remember(context.Context, *lb.Service, []lb.Client) error
}

// Addresses has this host hold service addresses of one family, so that sockets
// can be on them (redirect.Addresses).
type Addresses interface {
	// Sync has the host hold exactly these, of its family. After an error some may
	// be missing.
	Sync(context.Context, []netip.Addr) error
	// Verify reports whether the host still has what the last Sync asked for.
	Verify(context.Context) (bool, error)
	// Held returns the addresses that the host has because of Sync.
	Held() []netip.Addr
}

// Streams is the part of tcp.Server that the agent moves: sockets on node ports,
// and on service addresses that the host holds.
type Streams interface {
	// Listen accepts connections to an address.
	Listen(netip.AddrPort) (netip.AddrPort, error)
	// Unlisten ends that; open connections go on.
	Unlisten(netip.AddrPort)
}

// Datagrams is the part of udp.Server and sctp.Server that the agent moves: sockets
// on proxy ports, on node ports, and on service addresses that the host holds.
type Datagrams interface {
	// Listen opens the socket of a frontend; port 0 lets the kernel choose.
	Listen(lb.Frontend, netip.AddrPort) (netip.AddrPort, error)
	// Unlisten closes it, with its flows.
	Unlisten(lb.Frontend)
	// TableChanged has flows leave endpoints that are no longer in the table.
	TableChanged()
}

// Desired is what is to be in force. The agent owns its slices once it has it.
type Desired struct {
	Services []lb.Service
	Node     lb.Node
	Checks   []netip.AddrPort // where health checks of Services are answered, by TCP: the firewall of the node lets them in
	Changes  Changes          // since what was submitted before
}

// Changes is what has led from one Desired to the next, for kube-proxy's metrics.
type Changes struct {
	Services, Endpoints int       // objects of the API that are new, others or gone
	Triggers            []Trigger // when endpoints have changed, where their objects say so
}

// Trigger is when an endpoint changed, by the annotation of its EndpointSlice.
type Trigger struct {
	IPv6 bool
	At   time.Time
}

// add moves what is in other to c.
func (c *Changes) add(other *Changes) {
	c.Services += other.Services
	c.Endpoints += other.Endpoints
	room := max(0, maxTriggers-len(c.Triggers))
	c.Triggers = append(c.Triggers, other.Triggers[:min(room, len(other.Triggers))]...)
	*other = Changes{}
}

// Attempt is how bringing something into force went.
type Attempt struct {
	Took    time.Duration
	Err     error   // nil if it is in force
	Changes Changes // what came into force with it; none after an error
}

// Family is how one address family is served: packets are steered to proxy ports, or
// the host holds the service addresses and sockets listen there. With neither the
// family is not served.
type Family struct {
	Steer     Steerer
	Bind      netip.Addr // where UDP and SCTP proxy ports listen
	Addresses Addresses

	// IPTables and IPVS forward in the kernel. nil: this host cannot, and No says why.
	IPTables, IPVS     Engine
	NoIPTables, NoIPVS error
}

func (f *Family) served() bool { return f.Steer != nil || f.Addresses != nil }

// Agent applies what is desired, one set after the other. Its exported fields are
// set before Apply or Run is called.
type Agent struct {
	LB         *lb.Balancer
	TCP        Streams
	UDP        Datagrams
	SCTP       Datagrams // nil: SCTP is not served
	IPv4, IPv6 Family
	TCPPort    uint16             // proxy port of all TCP frontends, in both families
	Ports      redirect.PortRange // where the proxy ports of UDP and SCTP frontends are taken from
	Retired    []netip.AddrPort   // TCP proxy ports of before, closed when nothing is steered there any more
	Now        func() int64       // the clock of lb.Flow
	Log        *zap.Logger

	// RefuseSCTP reports whether SCTP, where the host holds the service addresses, is
	// refused by a socket of SCTP and by nothing else: packets go to raw sockets, and the
	// host is silent about them. It is asked when sockets are open. nil: it is not.
	RefuseSCTP func() bool

	// Mode is who forwards the Services that wish nothing else. The zero Path means
	// Userspace.
	Mode Path

	// Unmet is told, by the goroutine of Apply, when the wish of a Service for a path
	// cannot be met, with the path that it is on instead, and once more with an empty
	// reason when that is over. It must not block. May be nil.
	Unmet func(id lb.ID, wish string, instead Path, reason string)

	// LocalAddrs returns the node's own addresses. It is asked with every change and
	// every verification, so that a node may get and lose addresses. nil: none.
	// Service addresses that the host holds because of the agent are left out by the agent.
	LocalAddrs func() ([]netip.Addr, error)

	// NodePorts returns the addresses on which node ports are served, given the
	// node's own; an unspecified one stands for all. nil: all, in both families.
	NodePorts func(local []netip.Addr) []netip.Addr

	// VerifyEvery is how often it is checked that the rules are still there. 0:
	// 30 s, kube-proxy's sync period. What waits for two of these periods makes the
	// agent unhealthy.
	VerifyEvery time.Duration

	// WriteEvery bounds how often Run writes rules, steering and engines together, from
	// start to start: once in a period, but twice at once after quiet. What comes
	// meanwhile is written together; what needs no rules, as other endpoints of a
	// Service in user space, is in force at once. 0: no bound. At most VerifyEvery.
	WriteEvery time.Duration

	// Observe is told of every attempt. May be nil.
	Observe func(Attempt)

	// Conflict is told, by the goroutine of Apply, when a node port of the Service
	// turns out to be somebody else's (err says how), and once more with a nil err
	// when that is over: it is ours, or no longer wanted. It must not block. May be nil.
	Conflict func(id lb.ID, f lb.Frontend, err error)

	// Begun is told, by the goroutine of Apply, of frontends of TCP and SCTP that are in
	// force from now on and were not before; of all when the first Services are in force, and
	// when rules that others have changed are. A node port has an unspecified address. It must
	// not block. May be nil.
	Begun func([]lb.Frontend)

	local     []netip.Addr // the node's addresses at the last Apply
	applied   Desired      // what the last Apply was given, and what of before is still served
	sockets   sockets
	paths     paths
	damaged   bool    // others have changed our rules, and they are not repaired yet
	complaint string  // what could not be served of the last table, to log it once
	applying  Changes // those that Apply is bringing into force
	written   written
	pace      pace      // of writing rules
	begun     *lb.Table // what Begun knows, but for unopened; nil: nothing
	unopened  map[lb.Frontend]bool
	chosen    chosen // by the last Apply
	described described
	spareTCP  []netip.AddrPort // memory for the next plan's

	once    sync.Once
	mailbox chan struct{} // one token: there is something in next
	busy    chan struct{} // one token: a change is being applied, or none may be

	mu      sync.Mutex // guards the following
	next    *Desired
	pending Changes      // of next
	spare   []lb.Service // see Spare
	status  Status
}

// Status is what the agent can say about itself.
type Status struct {
	Services  int        // service ports in force
	Frontends int        // addresses in force
	Backends  int        // endpoints in force, counted once a service port
	Conflicts int        // node ports, and ports of service addresses, that somebody else has
	NoLocal   [2]NoLocal // of IPv4 and of IPv6

	Paths [pathCount]int // service ports in force on each Path
	Unmet int            // service ports that are not on the path they wish

	QueuedSince time.Time     // since when something waits to be in force; zero when nothing does
	LastQueued  time.Time     // when a change was last submitted
	LastApplied time.Time     // when a change was last applied without error
	StaleAfter  time.Duration // how long something may wait in good health
	LastError   error         // why the waiting change could not be applied yet, or nil
	Applied     uint64        // changes applied
	Failures    uint64        // attempts that failed
	Repairs     uint64        // times that rules were found changed by others and put right
	PutOff      uint64        // times that it was too soon to write rules

	ServiceChanges, EndpointChanges   uint64 // submitted so far (Desired.Changes)
	ServicesPending, EndpointsPending int    // of those, not in force yet
}

// NoLocal counts service ports that have endpoints, and none on this node, where a
// policy Local asks for one.
type NoLocal struct {
	Internal, External int // by internalTrafficPolicy, by externalTrafficPolicy
}

// Healthy reports whether nothing has been waiting for StaleAfter.
func (s Status) Healthy(now time.Time) bool {
	return s.QueuedSince.IsZero() || now.Sub(s.QueuedSince) < s.StaleAfter
}

// Status returns a snapshot. It may be called from anywhere.
func (a *Agent) Status() Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.status
	s.StaleAfter = 2 * a.verifyEvery()
	return s
}

func (a *Agent) verifyEvery() time.Duration {
	if a.VerifyEvery <= 0 {
		return verifyEvery
	}
	return a.VerifyEvery
}

func (a *Agent) init() {
	a.once.Do(func() {
		a.mailbox = make(chan struct{}, 1)
		a.busy = make(chan struct{}, 1)
		a.sockets.init()
	})
}

// Submit hands over what is desired from now on, for Run to apply; what has been
// submitted before and not been applied yet is forgotten. It never blocks and may
// be called from anywhere.
func (a *Agent) Submit(d Desired) {
	a.init()
	a.mu.Lock()
	a.note(&d.Changes)
	a.next = &d
	a.mu.Unlock()
	select {
	case a.mailbox <- struct{}{}:
	default: // a token lies there already, and next is read after it is taken
	}
}

// Spare returns memory for the Services of what is submitted next: that of some that were
// in force before, or nil. It belongs to the caller.
func (a *Agent) Spare() []lb.Service {
	a.mu.Lock()
	defer a.mu.Unlock()
	spare := a.spare
	a.spare = nil
	return spare
}

// inForce notes what is served from now on. What was before is spare, unless it is what
// is served, or what Run applies next.
func (a *Agent) inForce(now Desired) {
	a.mu.Lock()
	defer a.mu.Unlock()
	old := a.applied.Services
	if !sameMemory(old, now.Services) && (a.next == nil || !sameMemory(old, a.next.Services)) {
		a.spare = old
	}
	a.applied = now
}

// sameMemory reports whether two slices begin at the same place.
func sameMemory(a, b []lb.Service) bool {
	return cap(a) > 0 && cap(b) > 0 && &a[:1][0] == &b[:1][0]
}

// note records that changes have been submitted. mu is held.
func (a *Agent) note(c *Changes) {
	now := time.Now()
	a.status.LastQueued = now
	if a.status.QueuedSince.IsZero() {
		a.status.QueuedSince = now
	}
	a.status.ServiceChanges += uint64(c.Services)
	a.status.EndpointChanges += uint64(c.Endpoints)
	a.status.ServicesPending += c.Services
	a.status.EndpointsPending += c.Endpoints
	a.pending.add(c)
}

// Run applies what is submitted until ctx ends. A change that fails is tried
// again until it succeeds or a newer one replaces it; a node port that somebody
// else has is tried again for as long as it is wanted.
func (a *Agent) Run(ctx context.Context) {
	a.init()
	sweep := time.NewTicker(sweepEvery)
	defer sweep.Stop()
	verify := time.NewTicker(a.verifyEvery())
	defer verify.Stop()
	a.pace.period = a.WriteEvery
	var retry, due <-chan time.Time
	wait := retryMin
	if len(a.sockets.conflicts) > 0 { // of the first Apply
		retry = time.After(wait)
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-sweep.C:
			a.LB.Sweep(a.Now())
			continue
		case <-verify.C:
			if retry != nil || a.intact(ctx) {
				continue
			}
		case <-a.mailbox:
			wait = retryMin
		case <-retry:
		case <-due:
		}
		retry, due = nil, nil
		later, err := a.apply(ctx, a.newest())
		if later > 0 {
			due = time.After(later)
			continue
		}
		if err != nil && ctx.Err() == nil {
			a.Log.Error("change not applied, the last good state stays", zap.Error(err), zap.Duration("retry in", wait))
		}
		if err != nil || len(a.sockets.conflicts) > 0 {
			retry = time.After(wait)
			wait = min(2*wait, retryMax)
		}
	}
}

// newest returns what is to be in force: what was submitted last, or, if nothing
// was, what the start applied.
func (a *Agent) newest() Desired {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.applying.add(&a.pending)
	if a.next == nil {
		return a.applied
	}
	return *a.next
}

// intact reports whether steering is still what it was made to be, on the addresses
// that the node has. Somebody else's "iptables -F" or a firewall's reload, or a new
// address, is why it may not be.
func (a *Agent) intact(ctx context.Context) bool {
	if local, err := a.NodeAddrs(); err == nil && !slices.Equal(local, a.local) {
		a.Log.Info("the node's addresses have changed", zap.Stringers("addresses", local))
		return false
	}
	intact := true
	for _, f := range a.families() {
		ok, err := f.verify(ctx)
		if ctx.Err() != nil {
			return true
		}
		if err != nil {
			a.Log.Warn("rules not verified", zap.Error(err)) // nothing is known to be missing
		}
		if !ok {
			a.Log.Warn("rules or addresses were changed by others; writing them again")
			a.damaged, intact = true, false
			a.written, a.begun = written{}, nil
		}
	}
	return intact
}

// families returns those that are served.
func (a *Agent) families() (out []Family) {
	for _, f := range []Family{a.IPv4, a.IPv6} {
		if f.served() {
			out = append(out, f)
		}
	}
	return out
}

// putOff records that a change waits until rules may be written.
func (a *Agent) putOff() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.status.PutOff++
	if a.status.QueuedSince.IsZero() { // a repair
		a.status.QueuedSince = time.Now()
	}
}

// settle records how a change ended.
func (a *Agent) settle(start time.Time, err error) {
	attempt := Attempt{Took: time.Since(start), Err: err}
	if err == nil {
		attempt.Changes.add(&a.applying)
	}
	if a.Observe != nil {
		a.Observe(attempt)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.status.LastError = err
	a.status.Conflicts = len(a.sockets.conflicts)
	if err != nil {
		a.status.Failures++
		if a.status.QueuedSince.IsZero() { // a repair
			a.status.QueuedSince = start
		}
		return
	}
	a.status.Applied++
	a.status.ServicesPending -= attempt.Changes.Services
	a.status.EndpointsPending -= attempt.Changes.Endpoints
	if a.damaged {
		a.damaged = false
		a.status.Repairs++
	}
	a.status.LastApplied = time.Now()
	a.status.QueuedSince = time.Time{}
	if len(a.mailbox) > 0 { // a newer one waits, and no other
		a.status.QueuedSince = a.status.LastQueued
	}
}
