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

	// StaleAfter is how long a change may wait before the agent is called
	// unhealthy: two of kube-proxy's sync periods of 30 s.
	StaleAfter = time.Minute
)

// Steerer makes packets for frontends of one address family arrive at proxy ports
// (redirect.IPTables).
type Steerer interface {
	// Sync steers exactly what the plan says. After an error it may have done a part.
	Sync(context.Context, redirect.Plan) error
	// Verify reports whether what the last Sync made is still there.
	Verify(context.Context) (bool, error)
}

// Streams is the part of tcp.Server that the agent moves: sockets on node ports.
type Streams interface {
	// Listen accepts connections to an address.
	Listen(netip.AddrPort) (netip.AddrPort, error)
	// Unlisten ends that; open connections go on.
	Unlisten(netip.AddrPort)
}

// Datagrams is the part of udp.Server that the agent moves: sockets on proxy ports
// and on node ports.
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
}

// Family is how one address family is served.
type Family struct {
	Steer Steerer    // nil: the family is not served
	Bind  netip.Addr // where UDP proxy ports listen
}

// Agent applies what is desired, one set after the other. Its exported fields are
// set before Apply or Run is called.
type Agent struct {
	LB         *lb.Balancer
	TCP        Streams
	UDP        Datagrams
	IPv4, IPv6 Family
	TCPPort    uint16             // proxy port of all TCP frontends, in both families
	Ports      redirect.PortRange // where the proxy ports of UDP frontends are taken from
	Now        func() int64       // the clock of lb.Flow
	Log        *zap.Logger

	// LocalAddrs returns the node's own addresses. It is asked with every change and
	// every verification, so that a node may get and lose addresses. nil: none.
	LocalAddrs func() ([]netip.Addr, error)

	// NodePorts returns the addresses on which node ports are served, given the
	// node's own; an unspecified one stands for all. nil: all, in both families.
	NodePorts func(local []netip.Addr) []netip.Addr

	// VerifyEvery is how often it is checked that the rules are still there. 0:
	// 30 s, kube-proxy's sync period.
	VerifyEvery time.Duration

	// Observe is told how long each change took to apply and how it ended. May be nil.
	Observe func(time.Duration, error)

	local     []netip.Addr // the node's addresses at the last Apply
	applied   Desired      // what the last Apply was given, and what of before is still served
	sockets   sockets
	damaged   bool   // others have changed our rules, and they are not repaired yet
	complaint string // what could not be served of the last table, to log it once

	once    sync.Once
	mailbox chan struct{} // one token: there is something in next

	mu     sync.Mutex // guards the following
	next   *Desired
	status Status
}

// Status is what the agent can say about itself.
type Status struct {
	Services    int       // service ports in force
	Frontends   int       // addresses in force
	Backends    int       // endpoints in force, counted once a service port
	Conflicts   int       // node ports that somebody else has
	QueuedSince time.Time // since when a change waits; zero when none does
	LastApplied time.Time // when a change was last applied without error
	LastError   error     // why the waiting change could not be applied yet, or nil
	Applied     uint64    // changes applied
	Failures    uint64    // attempts that failed
	Repairs     uint64    // times that rules were found changed by others and put right
}

// Healthy reports whether no change has been waiting for longer than StaleAfter.
func (s Status) Healthy(now time.Time) bool {
	return s.QueuedSince.IsZero() || now.Sub(s.QueuedSince) < StaleAfter
}

// Status returns a snapshot. It may be called from anywhere.
func (a *Agent) Status() Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.status
}

func (a *Agent) init() {
	a.once.Do(func() {
		a.mailbox = make(chan struct{}, 1)
		a.sockets.init()
	})
}

// Submit hands over what is desired from now on, for Run to apply; what has been
// submitted before and not been applied yet is forgotten. It never blocks and may
// be called from anywhere.
func (a *Agent) Submit(d Desired) {
	a.init()
	a.mu.Lock()
	a.next = &d
	if a.status.QueuedSince.IsZero() {
		a.status.QueuedSince = time.Now()
	}
	a.mu.Unlock()
	select {
	case a.mailbox <- struct{}{}:
	default: // a token lies there already, and next is read after it is taken
	}
}

// Run applies what is submitted until ctx ends. A change that fails is tried
// again until it succeeds or a newer one replaces it; a node port that somebody
// else has is tried again for as long as it is wanted.
func (a *Agent) Run(ctx context.Context) {
	a.init()
	sweep := time.NewTicker(sweepEvery)
	defer sweep.Stop()
	every := a.VerifyEvery
	if every <= 0 {
		every = 30 * time.Second
	}
	verify := time.NewTicker(every)
	defer verify.Stop()
	var retry <-chan time.Time
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
		}
		retry = nil
		err := a.Apply(ctx, a.newest())
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
	if a.next == nil {
		return a.applied
	}
	return *a.next
}

// intact reports whether steering is still what it was made to be, on the addresses
// that the node has. Somebody else's "iptables -F" or a firewall's reload, or a new
// address, is why it may not be.
func (a *Agent) intact(ctx context.Context) bool {
	if local, err := a.localAddrs(); err == nil && !slices.Equal(local, a.local) {
		a.Log.Info("the node's addresses have changed", zap.Stringers("addresses", local))
		return false
	}
	for _, f := range a.families() {
		ok, err := f.Steer.Verify(ctx)
		switch {
		case ctx.Err() != nil:
			return true
		case err != nil:
			a.Log.Warn("rules not verified", zap.Error(err)) // nothing is known to be missing
		case !ok:
			a.Log.Warn("rules were changed by others; writing them again")
			a.damaged = true
			return false
		}
	}
	return true
}

// families returns those that are served.
func (a *Agent) families() (out []Family) {
	for _, f := range []Family{a.IPv4, a.IPv6} {
		if f.Steer != nil {
			out = append(out, f)
		}
	}
	return out
}

// settle records how a change ended.
func (a *Agent) settle(start time.Time, err error) {
	if a.Observe != nil {
		a.Observe(time.Since(start), err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.status.LastError = err
	a.status.Conflicts = len(a.sockets.conflicts)
	if err != nil {
		a.status.Failures++
		return
	}
	a.status.Applied++
	if a.damaged {
		a.damaged = false
		a.status.Repairs++
	}
	a.status.LastApplied = time.Now()
	if len(a.mailbox) == 0 { // else a newer one waits
		a.status.QueuedSince = time.Time{}
	}
}
