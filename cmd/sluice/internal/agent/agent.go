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

	// sweepEvery is how often expired affinity is deleted. It has no effect but on memory.
	sweepEvery = time.Minute

	// verifyEvery is Agent.VerifyEvery unless it is set: kube-proxy's sync period.
	verifyEvery = 30 * time.Second
)

// Desired is what is requested. The agent owns its slices once it has it.
type Desired struct {
	Services []*lb.Service
	Node     lb.Node
	Changes  Changes // since what was submitted before

	// Checks are where health checks of Services are answered, by TCP: the firewall of the
	// node lets them in.
	Checks []netip.AddrPort
}

// Config is what an Agent works with. It is set before Adopt, Prime, Apply or Run is called.
type Config struct {
	LB         *lb.Balancer
	TCP, UDP   Sockets
	SCTP       Sockets // nil: SCTP is not served
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

	// Mode is the path of Services that request none. The zero Path means Userspace.
	Mode Path

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
	// Service in user space, is applied at once. 0: no bound. At most VerifyEvery.
	WriteEvery time.Duration

	// Observe is called after every attempt, by the goroutine of Apply or Run. It must
	// not block. May be nil.
	Observe func(Attempt)
}

// Agent applies what is desired, one set after the other.
type Agent struct {
	Config

	once     sync.Once
	busy     chan struct{} // one token: a change is being applied, or none may be
	progress progress

	// The rest belongs to the goroutine of Apply and Run.

	want       Desired       // what the last Apply was given
	local      []netip.Addr  // the node's addresses then
	leaving    []*lb.Service // what is served beside planner.table, since it may still be steered
	planner    planner
	steering   steering
	forwarders map[familyPath]*forwarder
	sockets    sockets
	pace       pace
	log        complaints
	applying   Changes // those that Apply is bringing to the data path
	damaged    bool    // another program has changed our rules, and they are not repaired yet
}

// complaints is what has been logged and reported, so that it is so once.
type complaints struct {
	refused   string // what could not be served of the last table
	fallbacks map[lb.ID]Fallback
}

func (a *Agent) init() {
	a.once.Do(func() {
		a.progress.token = make(chan struct{}, 1)
		a.busy = make(chan struct{}, 1)
		a.sockets = newSockets()
		a.forwarders = make(map[familyPath]*forwarder)
		a.log.fallbacks = make(map[lb.ID]Fallback)
	})
}

// configure reads what has been set in Config since.
func (a *Agent) configure() {
	a.init()
	if a.Mode == None {
		a.Mode = Userspace
	}
	a.sockets.server = map[lb.Protocol]Sockets{lb.TCP: a.TCP, lb.UDP: a.UDP, lb.SCTP: a.SCTP}
	a.sockets.bind, a.sockets.ports = [2]netip.Addr{a.IPv4.Bind, a.IPv6.Bind}, a.Ports
}

// Submit hands over what is desired from now on, for Run to apply; what has been
// submitted before and not been applied yet is dropped. It never blocks and may
// be called from anywhere.
func (a *Agent) Submit(d Desired) {
	a.init()
	a.progress.submit(d)
}

// Status returns a snapshot. It may be called from anywhere.
func (a *Agent) Status() Status {
	a.progress.mu.Lock()
	defer a.progress.mu.Unlock()
	s := a.progress.status
	s.StaleAfter = 2 * a.verifyEvery()
	return s
}

func (a *Agent) verifyEvery() time.Duration {
	if a.VerifyEvery <= 0 {
		return verifyEvery
	}
	return a.VerifyEvery
}

// Run applies what is submitted until ctx ends. A change that fails is tried
// again until it succeeds or a newer one replaces it; a node port that another
// program has is tried again for as long as it is wanted.
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
		case <-a.progress.token:
			wait = retryMin
		case <-retry:
		case <-due:
		}
		retry, due = nil, nil
		want := a.want // what the start has applied
		if next := a.progress.take(&a.applying); next != nil {
			want = *next
		}
		later, err := a.apply(ctx, want)
		if later > 0 {
			due = time.After(later)
		}
		if err != nil || len(a.sockets.conflicts) > 0 {
			retry = time.After(wait)
			wait = min(2*wait, retryMax)
		}
	}
}

// intact reports whether steering is still what it was made to be, on the addresses
// that the node has. Another program's "iptables -F", a firewall's reload, or a new
// address of the node is why it may not be.
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
			a.Log.Warn("verifying rules failed", zap.Error(err)) // nothing is known to be missing
		}
		if !ok {
			a.Log.Warn("another program has changed rules or addresses; writing them again")
			a.damaged, intact = true, false
			a.rewrite()
		}
	}
	return intact
}

// rewrite makes the next attempt write everything.
func (a *Agent) rewrite() {
	a.planner.whole, a.steering.synced = true, false
	for _, e := range a.forwarders {
		e.synced = false
	}
}

// families returns those that are served.
func (a *Agent) families() (out []*Family) {
	for _, f := range []*Family{&a.IPv4, &a.IPv6} {
		if f.served() {
			out = append(out, f)
		}
	}
	return out
}

func (a *Agent) family(ipv6 bool) *Family {
	if ipv6 {
		return &a.IPv6
	}
	return &a.IPv4
}

// NodeAddrs returns the node's own addresses (LocalAddrs), which those that it holds
// for Services are not. It may be called by any goroutine.
func (a *Agent) NodeAddrs() ([]netip.Addr, error) {
	if a.LocalAddrs == nil {
		return nil, nil
	}
	local, err := a.LocalAddrs()
	for _, f := range a.families() {
		if f.Addresses != nil {
			held := f.Addresses.Held() // sorted
			local = slices.DeleteFunc(local, func(ip netip.Addr) bool {
				_, ours := slices.BinarySearchFunc(held, ip, netip.Addr.Compare)
				return ours
			})
		}
	}
	return local, err
}
