package agent

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/internal/lists"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
	"github.com/sluice-lb/sluice/redirect"
)

const (
	// retryMin and retryMax bound the wait before a change that failed is tried again;
	// it doubles from one to the other.
	retryMin = time.Second
	retryMax = 30 * time.Second

	// soonest is the least time between two attempts because Services have settled: one may wait for its turn to write
	// rules, or fail.
	soonest = time.Second

	// sweepEvery is how often expired affinity is deleted. It has no effect but on memory.
	sweepEvery = time.Minute

	// verifyEvery is Config.VerifyEvery unless it is set: kube-proxy's sync period.
	verifyEvery = 30 * time.Second
)

// Desired is what is requested. The agent owns its slices once it has it.
type Desired struct {
	Services lists.List[*lb.Service] // ordered by ID
	Node     lb.Node
	Changes  Changes // since what was submitted before

	// Checks are where health checks of Services are answered, by TCP: the firewall of the
	// node lets them in.
	Checks []netip.AddrPort

	// Hosts returns the endpoints that run on a node. nil: they are not known.
	Hosts func(node string) []lb.Host
}

// Config is what an Agent works with, all of which New is given.
type Config struct {
	LB       *balancer.Balancer
	Servers  map[lb.Protocol]Sockets // without one for SCTP that is not served
	Moving   *Moving                 // nil: the flows of a proxy port end when it is replaced by another
	Families [2]Family               // IPv4 and IPv6
	Proxy    ProxyPorts              // of TCP
	Ports    redirect.PortRange      // where proxy ports are taken from
	Room     func(have int) bool     // whether a Service with sockets for so many ports may have one more; nil: always
	Now      func() int64            // the clock of balancer.Flow
	Log      *zap.Logger

	// RefuseSCTP reports whether SCTP, where the host holds the service addresses, is
	// refused by a socket of SCTP and by nothing else: packets go to raw sockets, and the
	// host is silent about them. It is asked when sockets are open. nil: it is not.
	RefuseSCTP func() bool

	// Mode is the path of Services that request none, or Auto. The zero Path means Userspace.
	Mode Path

	// Stabilization is how long a Service on Auto stays on a path after it has last requested it. 0: it moves at once.
	Stabilization time.Duration

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
	// start to start: once in a period, but twice at once after quiet. What comes meanwhile is written together; what
	// needs no rules, as other endpoints of a Service in user space, is applied at once. 0: no bound. At most
	// VerifyEvery.
	WriteEvery time.Duration

	// Transparency is for Services that request sluice.io/transparent. nil: endpoints see this node's address.
	Transparency Transparency

	// Stale deletes the entries of conntrack that changes make stale. nil: none are.
	Stale Stale

	// Forwarding is called before rules or virtual servers are written, with what the kernel is to forward differently,
	// some of which may be there already. It must not block. May be nil.
	Forwarding func(*lb.Delta)

	// Observe is called after every attempt, by the goroutine of Apply or Run. It must
	// not block. May be nil.
	Observe func(Attempt)
}

// Agent applies what is desired, one set after the other.
type Agent struct {
	Config

	busy     chan struct{} // one token: a change is being applied, or none may be
	suspect  chan struct{} // one: another program may have changed rules
	offers   chan offer
	ejected  chan struct{} // one: there is something in progress.ejected
	requests chan *drainRequest
	jobEnded chan struct{} // one: a job of an engine has ended, and Run is to look whether that was late
	progress progress

	// The rest belongs to the goroutine of Apply and Run.

	want        Desired       // what the last Apply was given
	local       []netip.Addr  // the node's addresses then
	lost        []*lb.Service // what is served beside planner.table, since it may still be steered
	planner     planner
	reported    reported // what Attempt.Services have said so far
	steering    steering
	forwarders  [2][pathCount]forwarder // by family
	sockets     sockets
	tcpPort     uint16 // proxy port of all TCP frontends, in both families; 0: there is none yet
	pace        pace
	refused     string         // what could not be served, as logged last
	transparent map[lb.ID]bool // service ports whose endpoints are to see clients' own addresses
	opaque      [2]bool        // by family: that does not work, and is reported
	losers      []lb.Loser     // of which the next attempt says so
	applying    Changes        // that Apply brings to the data path
	damaged     bool           // another program has changed our rules, and they are not repaired yet
	offload     [2]bool        // by family: this process ends (Offload)
	looks       looks          // because of Suspect
	drains      drains
	inherited   map[lb.ID]bool // State.Kernel of the process before; nil: it has ended, leaving it

	patient     bool      // changes wait for engines, however long they take: so it is at the start and at the end
	late        Changes   // on the data path but for the Services of engines that still write
	lateRemoved []removal // what engines have removed since the last change, too late for it

	reconcileAgain bool // stale conntrack entries could not be deleted, and are to be looked for again
}

// New returns an agent that has applied nothing.
func New(c Config) *Agent {
	c.Mode, c.VerifyEvery = cmp.Or(c.Mode, Userspace), cmp.Or(c.VerifyEvery, verifyEvery)
	a := &Agent{Config: c, busy: make(chan struct{}, 1), transparent: make(map[lb.ID]bool)}
	a.suspect, a.ejected, a.progress.token = make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{}, 1)
	a.offers = make(chan offer, 2*len(a.Families)) // at the start, and later
	a.requests = make(chan *drainRequest)
	a.jobEnded, a.patient = make(chan struct{}, 1), true
	a.planner.engines = &a.forwarders
	a.planner.settling = settling{c.Stabilization, func() int64 { return a.Now() }}
	a.planner.healthy = func(s *lb.Service) *lb.Service { return a.LB.Health().WithoutEjected(s) }
	a.sockets = sockets{config: &a.Config, open: make(map[lb.Frontend]Socket), conflicts: make(map[lb.Frontend]lb.ID),
		goingOn: make(map[lb.Frontend]bool), shares: newShares()}
	return a
}

// bind returns where the proxy port of a frontend listens.
func (c *Config) bind(f lb.Frontend) netip.Addr { return c.Families[family(f.Addr.Addr().Is6())].Bind }

// Submit hands over what is desired from now on, for Run to apply; what has been
// submitted before and not been applied yet is dropped. It never blocks and may
// be called from anywhere.
func (a *Agent) Submit(d Desired) { a.submit(d, true) }

// TakeOver goes on with what was adopted, once all of it is this process's: it replaces a TCP proxy port that is not
// where this process is to listen, and submits what the start has found. What has been submitted since is newer, and
// stays. It is for before Run.
func (a *Agent) TakeOver(d Desired) {
	a.keepProxy()
	a.submit(d, false)
}

func (a *Agent) submit(d Desired, newer bool) {
	p := &a.progress
	p.mu.Lock()
	if p.next != nil && !newer {
		p.mu.Unlock()
		return
	}
	p.note(&d.Changes)
	p.next = &d
	p.mu.Unlock()
	select {
	case p.token <- struct{}{}:
	default: // a token lies there already, and next is read after it is taken
	}
	p.hurry()
}

// Suspect makes Run verify soon that all is still as it was made, since another program may
// have changed it: at once, unless it has done so a moment ago. It never blocks and may be
// called from anywhere.
func (a *Agent) Suspect() {
	select {
	case a.suspect <- struct{}{}:
	default: // the verification is still to come
	}
}

// offer is how a family is served from now on.
type offer struct {
	at     int // in Families
	family Family
}

// Offer says what was found out of a family since New, such as engines that could not be tried then: Apply or Run moves
// the Services there whose paths these are. It never blocks, and may be called from anywhere, twice for a family.
func (a *Agent) Offer(ipv6 bool, f Family) { a.offers <- offer{family(ipv6), f} }

// Ejected has an ejection, or its end, reach a Service that the kernel forwards. It never blocks and may be called from
// anywhere.
func (a *Agent) Ejected(id lb.ID) {
	p := &a.progress
	p.mu.Lock()
	if p.ejected == nil {
		p.ejected = make(map[lb.ID]struct{})
	}
	p.ejected[id] = struct{}{}
	p.mu.Unlock()
	select {
	case a.ejected <- struct{}{}:
	default: // Run is still to look
	}
	p.hurry()
}

// Status returns a snapshot. It may be called from anywhere.
func (a *Agent) Status() Status {
	a.progress.mu.Lock()
	defer a.progress.mu.Unlock()
	s := a.progress.status
	s.StaleAfter = 2 * a.VerifyEvery
	return s
}

// Run applies what is submitted until ctx ends. A change that fails is tried
// again until it succeeds or a newer one replaces it; a node port that another
// program has is tried again for as long as it is wanted.
func (a *Agent) Run(ctx context.Context) {
	sweep := time.NewTicker(sweepEvery)
	defer sweep.Stop()
	verify := time.NewTicker(a.VerifyEvery)
	defer verify.Stop()
	defer a.progress.turned(time.Time{})
	defer func() { _ = a.waitForJobs(context.Background()) }() // ctx has ended, and that of the engines with it
	a.pace.period = a.WriteEvery
	var retry, due, look, settled <-chan time.Time
	wait, failed := retryMin, true // failed: the last attempt, which is made again anyway, or there has been none yet
	if a.sockets.wanting() {       // since the first Apply
		retry = time.After(wait)
	}
	for {
		a.progress.turned(time.Now())
		select {
		case <-ctx.Done():
			return
		case <-sweep.C:
			a.LB.Sweep(a.Now())
			continue
		case <-a.suspect:
			if look == nil {
				look = time.After(a.looks.wait(time.Now()))
			}
			continue
		case <-look:
			look = nil
			// What is not written yet is written by the next attempt; one that fails for another reason repairs
			// nothing.
			if failed && !a.steering.synced || a.intact(ctx) {
				continue
			}
		case <-verify.C:
			if (failed && !a.steering.synced || a.intact(ctx)) && !a.sockets.emptied() {
				continue
			}
		case o := <-a.offers:
			a.Families[o.at] = o.family
		case <-a.jobEnded:
			if !a.anyLateDone() {
				continue
			}
		case <-a.ejected:
			if !a.planner.reconsider(a.progress.takeEjected()) {
				continue
			}
		case <-a.progress.token:
			wait = retryMin
		case r := <-a.requests:
			a.drains.asked = append(a.drains.asked, r)
		case <-a.drains.over:
		case <-retry:
		case <-due:
		case <-settled:
		}
		retry, due, settled = nil, nil, nil
		want := a.want // what the start has applied
		if next := a.progress.latest(&a.applying); next != nil {
			want = *next
		}
		later, err := a.apply(ctx, want)
		if later > 0 {
			due = time.After(later)
		}
		if first := a.planner.settles(); first != 0 {
			settled = time.After(max(soonest, time.Duration(first-a.Now())))
		}
		if failed = err != nil; failed || a.sockets.wanting() || a.reconcileAgain {
			retry = time.After(wait)
			wait = min(2*wait, retryMax)
		}
	}
}

// intact reports whether steering is still what it was made to be, on the addresses
// that the node has. Another program's "iptables -F", a firewall's reload, or a new
// address of the node is why it may not be.
//
// With many Services that takes longer than a change of one may wait, so a look gives way to it, and is made anew after
// it; but not for ever.
func (a *Agent) intact(ctx context.Context) bool {
	defer a.looks.spend(time.Now())
	looking, done := a.progress.giveWay(ctx, a.looks.given < mostGiven)
	defer done()
	if local, err := a.NodeAddrs(); err == nil && !slices.Equal(local, a.local) {
		a.Log.Info("the node's addresses have changed", zap.Stringers("addresses", local))
		return false
	}
	intact := true
	for i := range a.Families {
		changed, err := a.Families[i].verify(looking, &a.forwarders[i],
			func(path Path) { a.forwarders[i][path].repair(ctx, a) })
		if ctx.Err() != nil {
			return true
		}
		gave := looking.Err() != nil
		if gave && len(changed) == 0 {
			a.looks.given++
			a.Suspect()
			return intact
		}
		if err != nil && !gave {
			a.Log.Warn("verifying rules failed", zap.Error(err)) // nothing is known to be missing
		}
		if len(changed) > 0 {
			a.Log.Warn("another program has changed rules or addresses; writing them again",
				zap.Strings("changed", changed), zap.Bool("ipv6", i == family(true)))
			a.damaged, intact = true, false
			a.rewrite()
		}
	}
	if a.Transparency != nil && !a.Transparency.Verify() {
		a.Log.Warn("another program changed rules of transparent; writing them again")
		intact = false
	}
	a.syncTransparency(true) // also those that were left to open connections
	a.looks.given = 0
	return intact
}

// rewrite makes the next attempt write everything.
func (a *Agent) rewrite() {
	a.planner.whole, a.steering.synced = true, false
	for _, e := range a.engines() {
		e.synced = false
	}
}

// NodeAddrs returns the node's own addresses (LocalAddrs), which those that it holds
// for Services are not. It may be called by any goroutine.
func (a *Agent) NodeAddrs() ([]netip.Addr, error) {
	if a.LocalAddrs == nil {
		return nil, nil
	}
	local, err := a.LocalAddrs()
	for i := range a.Families {
		if f := &a.Families[i]; f.Addresses != nil {
			held := f.Addresses.Held() // sorted
			local = slices.DeleteFunc(local, func(ip netip.Addr) bool {
				_, ours := slices.BinarySearchFunc(held, ip, netip.Addr.Compare)
				return ours
			})
		}
	}
	return local, err
}
