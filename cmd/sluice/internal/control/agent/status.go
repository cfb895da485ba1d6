package agent

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sluice-lb/sluice/lb"
)

// maxTriggers bounds Changes.Triggers of changes that cannot be applied for long.
const maxTriggers = 10_000

// Changes is what has led from one Desired to the next, for kube-proxy's metrics.
type Changes struct {
	Services, Endpoints int       // objects of the API that are new, different or gone
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

// Attempt is how applying something went, and what is different since the attempt before.
type Attempt struct {
	Took    time.Duration
	Err     error   // nil if it is applied
	Changes Changes // what has been applied with it; none after an error

	Services  []ServiceChange  // what is different of Services since it was reported last
	Conflicts []Conflict       // that have begun or ended
	Shortages []Shortage       // that have begun or ended
	Fallbacks []Fallback       // that have begun, changed or ended
	Kept      []Kept           // that are from this attempt on, or for another reason
	Loops     []Loop           // that have begun, changed or ended
	Policies  []PolicyFallback // that have begun, changed or ended
	Losers    []lb.Loser       // Services with addresses of others: that have begun, changed or ended
	Own       []OwnAddress     // Services that have an address of the node since this attempt

	adopts   bool // it takes into use what engines have written
	partial  bool // and leaves the rest to the next one
	deferred bool // since it is too soon to write rules
}

// History is what goes on in the process that takes over.
type History struct {
	Applied, Failures uint64    // changes applied, attempts that failed
	Repairs           uint64    // times that rules were found changed by another program and repaired
	LastApplied       time.Time // when a change was last applied without error
}

// Status is what the agent can say about itself.
type Status struct {
	Services  int        // service ports applied
	Frontends int        // their addresses
	Backends  int        // their endpoints, counted once a service port
	Looping   int        // of these, those that lead back to Sluice and are left out
	Drained   int        // those that an operator has drained
	Conflicts int        // node ports, and ports of service addresses, that another program has
	Short     int        // ports of addresses that are not served, since file descriptors are few
	NoLocal   [2]NoLocal // of IPv4 and of IPv6

	Paths     [pathCount]int // service ports on each Path
	Fallbacks int            // service ports that are not on the path that was requested
	Policies  int            // that service ports request and their paths do not have; but schedulers of ipvs

	QueuedSince time.Time     // since when something waits to be applied; zero when nothing does
	LastQueued  time.Time     // when a change was last submitted
	StaleAfter  time.Duration // how long something may wait in good health
	LastTurn    time.Time     // when Run last began to wait for something to do; zero when it does not run
	LastError   error         // why the waiting change could not be applied yet, or nil
	Deferred    uint64        // times that it was too soon to write rules
	Moves       uint64        // of service ports, from one path to another
	Unmoved     uint64        // times that a service port on Auto waits before it moves to a cheaper path
	History

	ServiceChanges, EndpointChanges   uint64 // submitted so far (Desired.Changes)
	ServicesPending, EndpointsPending int    // of those, not applied yet
}

// Healthy reports whether nothing has been waiting for StaleAfter, and Run is not stuck.
func (s Status) Healthy(now time.Time) bool {
	return !s.Stuck(now) && (s.QueuedSince.IsZero() || now.Sub(s.QueuedSince) < s.StaleAfter)
}

// Stuck reports whether Run does one thing for longer than StaleAfter. If there is nothing to do it turns every
// sweepEvery.
func (s Status) Stuck(now time.Time) bool {
	return !s.LastTurn.IsZero() && now.Sub(s.LastTurn) >= sweepEvery+s.StaleAfter
}

// NoLocal counts service ports that have endpoints, and none on this node, where a
// policy Local asks for one.
type NoLocal struct {
	Internal, External int // by internalTrafficPolicy, by externalTrafficPolicy
}

// add adds a service port, or takes it away.
func (n *NoLocal) add(s *lb.Service, sign int) {
	internal, external := 0, 0
	for i := range s.Addresses {
		addr := &s.Addresses[i]
		if !addr.Local {
			continue
		}
		switch inside, outside := s.Verdicts(*addr); {
		case addr.Kind == lb.ClusterIP && inside == lb.Drop:
			internal = 1
		case addr.Kind != lb.ClusterIP && outside == lb.Drop:
			external = 1
		}
	}
	n.Internal += sign * internal
	n.External += sign * external
}

// add adds what a piece counts, or takes it away.
func (s *Status) add(p *piece, sign int) {
	if p == nothing {
		return
	}
	s.count(p.service, sign)
	s.Paths[p.choice.Path] += sign
	if p.choice.Fallback != "" {
		s.Fallbacks += sign
	}
	s.Policies += sign * len(p.shortfalls())
}

func (s *Status) count(service *lb.Service, sign int) {
	s.Services += sign
	s.Frontends += sign * len(service.Addresses)
	s.Backends += sign * len(service.Backends)
	s.Looping += sign * len(service.Looping())
	s.Drained += sign * service.Drained()
	s.NoLocal[family(service.IPv6)].add(service, sign)
}

// progress is what is submitted, and what has become of it.
type progress struct {
	token chan struct{} // one: next is newer than what was applied

	mu      sync.Mutex // guards the following
	next    *Desired
	pending Changes            // of next
	ejected map[lb.ID]struct{} // Services of which the ejections have changed
	status  Status

	interrupt func() // of the look that is being taken; nil: none is, or it does not give way
}

// hurry has a look give way to the change that waits now.
func (p *progress) hurry() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.interrupt != nil {
		p.interrupt()
	}
}

// giveWay returns a context that ends as soon as a change waits, if a look is to give way to one. done is to be called
// after it.
func (p *progress) giveWay(ctx context.Context, to bool) (looking context.Context, done func()) {
	if !to {
		return ctx, func() {}
	}
	looking, cancel := context.WithCancel(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.interrupt = cancel; len(p.token) > 0 || len(p.ejected) > 0 {
		cancel() // it waits already
	}
	return looking, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.interrupt = nil
		cancel()
	}
}

// note records that changes have been submitted. mu is held.
func (p *progress) note(c *Changes) {
	now := time.Now()
	p.status.LastQueued = now
	if p.status.QueuedSince.IsZero() {
		p.status.QueuedSince = now
	}
	p.status.ServiceChanges += uint64(c.Services)
	p.status.EndpointChanges += uint64(c.Endpoints)
	p.status.ServicesPending += c.Services
	p.status.EndpointsPending += c.Endpoints
	p.pending.add(c)
}

// latest returns what was submitted last, or nil if nothing was, and moves its changes to c.
func (p *progress) latest(c *Changes) *Desired {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.add(&p.pending)
	return p.next
}

// takeEjected returns the Services of which the ejections have changed since it was called last.
func (p *progress) takeEjected() []lb.ID {
	p.mu.Lock()
	defer p.mu.Unlock()
	ids := slices.Collect(maps.Keys(p.ejected))
	clear(p.ejected)
	return ids
}

// turned records when Run waits again; zero: it has ended.
func (p *progress) turned(at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.status.LastTurn = at
}

// deferred records that a change waits until rules may be written.
func (p *progress) deferred() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.status.Deferred++
	if p.status.QueuedSince.IsZero() { // a repair
		p.status.QueuedSince = time.Now()
	}
}

// applied counts what a plan changes.
func (p *progress) applied(plan *Plan) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &p.status
	if plan.whole {
		s.Services, s.Frontends, s.Backends, s.Looping, s.Drained, s.Fallbacks, s.Policies = 0, 0, 0, 0, 0, 0, 0
		s.NoLocal, s.Paths = [2]NoLocal{}, [pathCount]int{}
	}
	for i := range plan.changes {
		c := &plan.changes[i]
		if !plan.whole {
			s.add(c.old, -1)
		}
		s.add(c.now, 1)
		if c.moves() {
			s.Moves++
		}
		if c.delayed() {
			s.Unmoved++
		}
	}
}
