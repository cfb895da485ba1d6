package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
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

	// verifyEvery is how often it is checked that the rules are still there:
	// kube-proxy's sync period.
	verifyEvery = 30 * time.Second

	// sweepEvery is how often expired affinity is forgotten. It has no effect but
	// on memory.
	sweepEvery = time.Minute

	// StaleAfter is how long a change may wait before the agent is called
	// unhealthy: two of kube-proxy's sync periods of 30 s.
	StaleAfter = time.Minute
)

// Steerer makes packets for frontends arrive at proxy ports (redirect.IPTables).
type Steerer interface {
	// Sync steers exactly what the plan says. After an error it may have done a part.
	Sync(context.Context, redirect.Plan) error
	// Verify reports whether what the last Sync made is still there.
	Verify(context.Context) (bool, error)
}

// Datagrams is the part of udp.Server that the agent moves.
type Datagrams interface {
	// Listen opens the proxy port of a frontend; port 0 lets the kernel choose.
	Listen(lb.Frontend, netip.AddrPort) (netip.AddrPort, error)
	// Unlisten closes it, with its flows.
	Unlisten(lb.Frontend)
	// TableChanged has flows leave endpoints that are no longer in the table.
	TableChanged()
}

// Agent applies sets of Services, one at a time. Its exported fields are set
// before Apply or Run is called, all of them.
type Agent struct {
	LB      *lb.Balancer
	UDP     Datagrams
	Steer   Steerer
	TCPPort uint16             // proxy port of all TCP frontends
	Bind    netip.Addr         // where UDP proxy ports listen
	Ports   redirect.PortRange // where they are taken from
	Now     func() int64       // the clock of lb.Flow
	Log     *zap.Logger

	// Observe is told how long each change took to apply and how it ended. May be nil.
	Observe func(time.Duration, error)

	applied []lb.Service           // what the last Apply was given
	sockets map[lb.Frontend]uint16 // UDP proxy ports that are open
	refused string                 // what the last table left out, to log it once

	once    sync.Once
	mailbox chan struct{} // one token: there is something in next

	mu     sync.Mutex // guards the following
	next   []lb.Service
	status Status
}

// Status is what the agent can say about itself.
type Status struct {
	Services    int       // service ports in force
	Frontends   int       // addresses in force
	Backends    int       // endpoints in force, counted once a service port
	QueuedSince time.Time // since when a change waits; zero when none does
	LastApplied time.Time // when a change was last applied without error
	LastError   error     // why the waiting change could not be applied yet, or nil
	Applied     uint64    // changes applied
	Failures    uint64    // attempts that failed
	Repairs     uint64    // times that rules were found missing and written again
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
		a.sockets = make(map[lb.Frontend]uint16)
	})
}

// Submit hands over the newest set of Services, which Run applies; one that has
// not been applied yet is forgotten. It never blocks and may be called from
// anywhere. The agent owns the slice from now on.
func (a *Agent) Submit(services []lb.Service) {
	a.init()
	a.mu.Lock()
	a.next = services
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
// again until it succeeds or a newer one replaces it.
func (a *Agent) Run(ctx context.Context) {
	a.init()
	sweep := time.NewTicker(sweepEvery)
	defer sweep.Stop()
	verify := time.NewTicker(verifyEvery)
	defer verify.Stop()
	var retry <-chan time.Time
	wait := retryMin
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
		if err := a.Apply(ctx, a.newest()); err != nil && ctx.Err() == nil {
			a.Log.Error("change not applied, the last good state stays", zap.Error(err), zap.Duration("retry in", wait))
			retry = time.After(wait)
			wait = min(2*wait, retryMax)
		}
	}
}

// newest returns what is to be in force: what was submitted last, or, if nothing
// was, what the start applied.
func (a *Agent) newest() []lb.Service {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.next == nil {
		return a.applied
	}
	return a.next
}

// intact reports whether steering is still what it was made to be. Somebody else's
// "iptables -F" or a firewall's reload is why it may not be.
func (a *Agent) intact(ctx context.Context) bool {
	ok, err := a.Steer.Verify(ctx)
	switch {
	case err != nil && ctx.Err() == nil:
		a.Log.Warn("rules not verified", zap.Error(err))
		return true // nothing is known to be missing
	case ok || err != nil:
		return true
	}
	a.Log.Warn("rules are missing that others must have removed; writing them again")
	a.mu.Lock()
	defer a.mu.Unlock()
	a.status.Repairs++
	return false
}

// Apply brings a set of Services into force. It is for the start, before Run, and
// for Run itself. After an error the data path serves both what was and what is
// to be, as far as it got.
//
// Adding goes table, sockets, steering; removing goes steering, sockets, table.
// Both at once need a table in between that holds the old frontends beside the
// new, so that steering, the slow part, is changed only once:
//
//  1. table: the new Services, and the frontends that are about to go
//  2. sockets: those of new UDP frontends are opened
//  3. steering: from the old frontends to the new
//  4. sockets: those of old UDP frontends are closed
//  5. table: the new Services alone
func (a *Agent) Apply(ctx context.Context, services []lb.Service) (err error) {
	a.init()
	start := time.Now()
	defer func() { a.settle(start, err) }()

	table, refused := lb.NewTable(services)
	a.logRefused(refused)
	between, leaving := merge(services, a.applied)
	if leaving {
		t, _ := lb.NewTable(between) // its refusals are those above, and leaving frontends that have a new owner
		a.LB.Update(t)
	} else {
		a.LB.Update(table)
	}
	a.UDP.TableChanged()

	plan := redirect.Plan{TCPPort: a.TCPPort}
	socketErr := a.open(table, &plan)
	if err := a.Steer.Sync(ctx, plan); err != nil {
		// Frontends that are about to go may still be steered: they stay.
		a.applied = between
		return errors.Join(socketErr, fmt.Errorf("steer traffic: %w", err))
	}
	a.closeUnsteered(plan)
	if leaving {
		a.LB.Update(table)
		a.UDP.TableChanged()
	}
	a.applied = services
	a.describe(table)
	return socketErr
}

// open adds every frontend to the plan, opening UDP sockets as they are needed.
// The error names the frontends that got none; the plan is good for the others.
func (a *Agent) open(table *lb.Table, plan *redirect.Plan) error {
	var errs []error
	services := table.Services()
	for i := range services {
		s := &services[i]
		for _, addr := range s.Frontends {
			f := lb.Frontend{Protocol: s.Protocol, Addr: addr}
			switch {
			case !s.HasEligible():
				plan.Refuse = append(plan.Refuse, f)
			case s.Protocol == lb.TCP:
				plan.TCP = append(plan.TCP, addr)
			case s.Protocol == lb.UDP:
				port, err := a.socket(f)
				if err != nil {
					errs = append(errs, fmt.Errorf("open proxy port for %s of %s: %w", f, s.ID, err))
					continue
				}
				plan.Ported = append(plan.Ported, redirect.Ported{Frontend: f, Port: port})
			}
		}
	}
	return errors.Join(errs...)
}

// socket returns the proxy port of a UDP frontend, opening it if need be.
func (a *Agent) socket(f lb.Frontend) (uint16, error) {
	if port, ok := a.sockets[f]; ok {
		return port, nil
	}
	var got netip.AddrPort
	_, err := a.Ports.Claim(func(port uint16) (err error) {
		got, err = a.UDP.Listen(f, netip.AddrPortFrom(a.Bind, port))
		return err
	})
	if err != nil {
		return 0, err
	}
	a.sockets[f] = got.Port()
	return got.Port(), nil
}

// closeUnsteered closes the sockets that nothing is steered to any more.
func (a *Agent) closeUnsteered(plan redirect.Plan) {
	steered := make(map[lb.Frontend]struct{}, len(plan.Ported))
	for _, p := range plan.Ported {
		steered[p.Frontend] = struct{}{}
	}
	for f := range a.sockets {
		if _, ok := steered[f]; !ok {
			a.UDP.Unlisten(f)
			delete(a.sockets, f)
		}
	}
}

// merge returns the new Services with the frontends of the old ones added that no
// new Service has, so that what is still steered is still served, and whether there are any.
func merge(services, old []lb.Service) (between []lb.Service, leaving bool) {
	owned := make(map[lb.Frontend]struct{})
	byID := make(map[lb.ID]int, len(services))
	for i := range services {
		byID[services[i].ID] = i
		for _, addr := range services[i].Frontends {
			owned[lb.Frontend{Protocol: services[i].Protocol, Addr: addr}] = struct{}{}
		}
	}
	between = services
	own := func() { // copy before the first change: services stays what it was
		if !leaving {
			between = append([]lb.Service(nil), services...)
			leaving = true
		}
	}
	for _, s := range old {
		var gone []netip.AddrPort
		for _, addr := range s.Frontends {
			if _, ok := owned[lb.Frontend{Protocol: s.Protocol, Addr: addr}]; !ok {
				gone = append(gone, addr)
			}
		}
		if len(gone) == 0 {
			continue
		}
		own()
		if i, ok := byID[s.ID]; ok {
			between[i].Frontends = append(append([]netip.AddrPort(nil), between[i].Frontends...), gone...)
			continue
		}
		s.Frontends = gone
		between = append(between, s)
	}
	return between, leaving
}

// logRefused logs what a table had to leave out, once for each new reason.
func (a *Agent) logRefused(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != a.refused {
		a.Log.Warn("a part of the Services cannot be served", zap.Error(err))
	}
	a.refused = text
}

// describe puts the counts of what is in force into the status.
func (a *Agent) describe(table *lb.Table) {
	services := table.Services()
	frontends, backends := 0, 0
	for i := range services {
		frontends += len(services[i].Frontends)
		backends += len(services[i].Backends)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.status.Services, a.status.Frontends, a.status.Backends = len(services), frontends, backends
}

// settle records how a change ended.
func (a *Agent) settle(start time.Time, err error) {
	if a.Observe != nil {
		a.Observe(time.Since(start), err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.status.LastError = err
	if err != nil {
		a.status.Failures++
		return
	}
	a.status.Applied++
	a.status.LastApplied = time.Now()
	if len(a.mailbox) == 0 { // else a newer one waits
		a.status.QueuedSince = time.Time{}
	}
}
