package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/lb"
)

// Apply applies what is desired, at once. It is for the start, before Run. After an error the
// data path serves both what was and what is to be, as far as it got.
func (a *Agent) Apply(ctx context.Context, want Desired) error {
	a.progress.mu.Lock()
	a.progress.note(&want.Changes)
	a.progress.mu.Unlock()
	a.progress.latest(&a.applying)
	a.patient = true
	for len(a.offers) > 0 {
		o := <-a.offers
		a.Families[o.at] = o.family
	}
	_, err := a.apply(ctx, want) // only Run keeps a pace
	return err
}

// apply applies what has been noted, in the order that the package comment gives. If
// rules have to be written and it is too soon for that, it does step 1 and returns how long to wait
// before it is called again.
func (a *Agent) apply(ctx context.Context, want Desired) (wait time.Duration, err error) {
	resume, err := a.take(ctx) // wait while everything is being handed over
	if err != nil {
		return 0, fmt.Errorf("begin a change: %w", err)
	}
	defer resume()
	start, attempt := time.Now(), new(Attempt)
	defer func() {
		if !attempt.deferred {
			a.end(attempt, start, err)
		}
	}()
	if a.local, err = a.NodeAddrs(); err != nil {
		return 0, fmt.Errorf("read the node's addresses: %w", err)
	}
	a.want = Desired{Services: want.Services, Node: want.Node, Checks: want.Checks, Hosts: want.Hosts}
	attempt.adopts = a.collectLate()
	if attempt.adopts {
		attempt.Changes.add(&a.late)
	}
	// An engine has ended late: use what it has written, and pass nothing new. That has an attempt of its own.
	a.planner.adopting = attempt.adopts && !a.patient && !a.damaged
	env := a.environment()
	services := a.drained(env.served(want.Services.AppendTo(nil)))
	holdErr := a.setTable(ctx, env, services, env.on(want.Node, a.local))
	plan := a.planner.plan(env)
	host, checks := a.hostOf(&want), checksOf(plan, want.Checks)
	writes := !a.steering.synced || a.unsynced() || plan.writes() || !a.steering.has(host, checks)
	if a.damaged {
		defer a.looks.spend(start) // this bounds repairs, which do not wait
	}
	if writes && !a.planner.adopting {
		if wait := a.pace.wait(start); wait > 0 && !a.damaged {
			attempt.deferred = true
			a.progress.deferred()
			return wait, nil
		}
		a.pace.note(start)
	}
	plan, lacking, planErr := a.prepare(ctx, plan)
	a.requestTransparency(plan)
	a.handClients(ctx, plan)
	a.report(plan, attempt)
	if err := a.steer(ctx, a.steering.update(plan, &a.sockets, host, checks), checks); err != nil {
		a.rewrite() // what is about to go may still be steered: it stays
		return 0, errors.Join(holdErr, planErr, err)
	}
	finishErr := a.finish(ctx, plan)
	a.progress.applied(plan)
	attempt.Services = a.reported.changes(plan.table)
	a.planner.executed(plan, lacking)
	a.patient = false // from now on each row has a piece to stay on
	a.planner.whole = a.unsynced()
	if a.planner.adopting && (a.planner.whole || len(a.planner.dirty) > 0) {
		attempt.partial, wait = true, max(a.pace.wait(time.Now()), time.Nanosecond)
	}
	return wait, errors.Join(holdErr, planErr, finishErr)
}

// report adds to the attempt what is to be said of the rows of a plan, as far as it has not been.
func (a *Agent) report(plan *Plan, attempt *Attempt) {
	a.reportFallbacks(plan, attempt)
	a.reportPolicies(plan, attempt)
	a.reportLoops(plan, attempt)
	a.reportOwn(plan, attempt)
}

// finish removes what a plan does not need any more, now that clients are steered to what it has brought.
func (a *Agent) finish(ctx context.Context, plan *Plan) error {
	err := a.dropMoved(ctx, plan)
	unwanted := a.sockets.unwanted(plan)
	ended := a.sockets.goOn(unwanted, func(f lb.Frontend) bool {
		p, _ := a.planner.pieceAt(plan, f)
		return p.kernel != nil && !a.offload[family(f.Addr.Addr().Is6())]
	})
	a.sockets.moveFlows()
	a.reconcile(plan, ended)
	a.sockets.settle()
	a.sockets.closeAll(unwanted)
	a.retire()
	if len(a.lost) == 0 {
		return err
	}
	a.lost = nil
	for i := range plan.changes {
		c := &plan.changes[i]
		if !c.postponed || c.now == nothing {
			continue
		}
		if left := plan.table.Lost(c.now.service); left != nil { // it is steered where it was
			a.lost = append(a.lost, left)
		}
	}
	a.publish()
	return errors.Join(err, a.holdAddresses(ctx))
}

// publish makes the planner's table the current one, with the addresses beside it that are about to go.
func (a *Agent) publish() {
	table := a.planner.table
	if len(a.lost) > 0 {
		table = table.Beside(a.lost)
	}
	a.LB.Update(table)
	a.tableChanged()
}

// environment returns what decides about Services now.
func (a *Agent) environment() *environment {
	e := &environment{mode: a.Mode, refusing: a.RefuseSCTP != nil && a.RefuseSCTP(), offload: a.offload,
		given: a.LB.Defaults, hold: a.LB.Defaults.Hold > 0}
	e.nodePorts = []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}
	if a.NodePorts != nil {
		e.nodePorts = a.NodePorts(a.local)
	}
	for i := range a.Families {
		e.direct[i] = a.Families[i].Addresses != nil
		e.can[i] = a.Families[i].abilities(a.Servers[lb.SCTP] != nil, &a.forwarders[i])
	}
	return e
}

// on completes what is known of the node, whose own addresses are local.
func (e *environment) on(node lb.Node, local []netip.Addr) lb.Node {
	node.Addresses = slices.Concat(node.Addresses, local)
	node.NodePorts = e.nodePorts
	if !e.direct[0] && !e.direct[1] {
		node.Elsewhere = nil // what is steered leaves the addresses where they are
	}
	node.Elsewhere = slices.DeleteFunc(slices.Clone(node.Elsewhere), func(a netip.Addr) bool {
		return slices.Contains(node.Addresses, a)
	})
	return node
}

// served leaves out the Services that no path can forward.
func (e *environment) served(services []*lb.Service) []*lb.Service {
	if e.can[0].all() && e.can[1].all() {
		return services
	}
	left := func(s *lb.Service) bool {
		can := &e.can[family(s.IPv6)]
		return !can.all() && e.choose(s).Path == None
	}
	if !slices.ContainsFunc(services, left) {
		return services
	}
	return slices.DeleteFunc(slices.Clone(services), left)
}

// setTable makes the table of what is desired the current one, with the addresses beside it
// that are about to go.
func (a *Agent) setTable(ctx context.Context, env *environment, services []*lb.Service, node lb.Node) error {
	delta, refused := a.planner.next(services, node, env)
	a.reported.note(&delta)
	was := a.lost
	a.noteLosers(&delta)
	if delta.Whole {
		was = a.LB.Table().Services()
		for _, e := range a.engines() {
			e.synced = e.synced && e.empty // what they forward depends on the node
		}
	}
	was = append(was, delta.Removed...)
	for _, c := range delta.Changed {
		if c.Addresses {
			was = append(was, c.Old)
		}
	}
	table := a.planner.table
	a.lost = nil
	for _, s := range was {
		if left := table.Lost(s); left != nil {
			a.lost = append(a.lost, left)
		}
	}
	err := a.holdAddresses(ctx)
	a.publish()
	a.logRefused(refused)
	return err
}

// logRefused logs what a table has not taken over of its Services, as far as it has looked at them: those whose
// endpoints change all the time only once, and a few of many.
func (a *Agent) logRefused(err error) {
	const few = 10
	several, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return
	}
	all := several.Unwrap()
	if err = errors.Join(all[:min(few, len(all))]...); err.Error() != a.refused {
		a.Log.Warn("a part of the Services cannot be served", zap.Int("parts", len(all)), zap.Error(err))
	}
	a.refused = err.Error()
}

// holdAddresses makes the host hold the addresses of the Services, each one while any port of it is
// in use, whether it has endpoints or not: a client is refused by the host that has the
// address and no socket, and not at all if no host has it.
func (a *Agent) holdAddresses(ctx context.Context) error {
	var errs []error
	for i, f := range a.Families {
		if f.Addresses == nil {
			continue
		}
		var addrs []netip.Addr
		for _, list := range [][]*lb.Service{a.planner.table.Services(), a.lost} {
			for _, s := range list {
				if family(s.IPv6) != i {
					continue
				}
				for _, addr := range s.Addresses {
					if addr.Kind != lb.NodePort {
						addrs = append(addrs, addr.Addr.Addr())
					}
				}
			}
		}
		errs = append(errs, f.Addresses.Sync(ctx, addrs))
	}
	return errors.Join(errs...)
}

// tableChanged notifies those of the data path that hold on to backends.
func (a *Agent) tableChanged() {
	for _, protocol := range []lb.Protocol{lb.TCP, lb.UDP, lb.SCTP} {
		if s := a.Servers[protocol]; s != nil {
			s.TableChanged()
		}
	}
}

// unsynced reports whether an engine may not have what it was passed, and is not writing.
func (a *Agent) unsynced() bool {
	return slices.ContainsFunc(a.engines(), func(e *forwarder) bool { return !e.synced && e.job == nil })
}

// maxReplans bounds how often prepare makes another plan because of what changes meanwhile: the
// engine of SCTP is chosen once, and the addresses of node ports seldom differ.
const maxReplans = 4

var errUnsettled = errors.New("what decides about Services does not come to rest")

// prepare passes the Services of a plan to the engines, and opens its sockets. Where that
// decides about Services, as when an engine fails or takes long, it returns another plan, with its
// sockets open. The error says what is not as it should be; the plan is good for the rest.
func (a *Agent) prepare(ctx context.Context, plan *Plan) (now *Plan, lacking []*row, err error) {
	for replans := 0; ; {
		for a.join(ctx, plan) { // once for each engine, or less often
			plan = a.planner.plan(a.environment())
		}
		lacking, err = a.sockets.provide(plan)
		env := a.environment() // by now it is known what forwards SCTP
		settled := reflect.DeepEqual(env, &plan.env)
		if !settled && replans < maxReplans {
			replans++
			plan = a.planner.plan(env)
			continue
		}
		if !settled {
			err = errors.Join(err, errUnsettled)
		}
		return plan, lacking, errors.Join(err, a.failures())
	}
}

// added returns the frontends of TCP and SCTP that a plan adds to what is served; of all
// that are served if nothing was.
func added(plan *Plan, open *sockets, all bool) (out []lb.Frontend) {
	had := make(map[lb.Frontend]bool)
	for i := range plan.changes {
		if plan.changes[i].postponed {
			continue
		}
		old, now := plan.changes[i].old, plan.changes[i].now
		for _, so := range now.sockets {
			if so.proxy && open.proxyPort(so.frontend) == 0 {
				now.unopened = append(now.unopened, so.frontend)
			}
		}
		if !all && now.connects(old) {
			continue
		}
		now.connected(func(f lb.Frontend) { out = append(out, f) })
		if !all {
			old.connected(func(f lb.Frontend) { had[f] = true })
		}
	}
	if len(had) == 0 {
		return out
	}
	return slices.DeleteFunc(out, func(f lb.Frontend) bool { return had[f] })
}

// connects reports whether a piece serves the frontends that another one of the same service port does.
func (p *piece) connects(as *piece) bool {
	return p != nothing && as != nothing && len(p.unopened)+len(as.unopened) == 0 &&
		p.service.SameAddresses(as.service)
}

// connected calls do for the frontends of TCP and SCTP that are served.
func (p *piece) connected(do func(lb.Frontend)) {
	if p == nothing || p.service.Protocol == lb.UDP {
		return
	}
	for _, addr := range p.service.Addresses {
		f := lb.Frontend{Protocol: p.service.Protocol, Addr: addr.Addr}
		if !slices.Contains(p.unopened, f) {
			do(f)
		}
	}
}

// reportFallbacks adds to the attempt which Services are not on the path that was requested
// for them, and are again, as far as that has not been reported.
func (a *Agent) reportFallbacks(plan *Plan, attempt *Attempt) {
	for i := range plan.changes {
		c := &plan.changes[i]
		was := c.port.said.fallback
		now, is := c.now.fallback(a.Mode)
		if c.kept() {
			attempt.Kept = append(attempt.Kept, Kept{c.id(), c.now.choice.Why})
		}
		switch {
		case is && now != was:
			a.Log.Warn("requested data path unavailable, falling back", zap.Stringer("service", c.id()),
				zap.Stringer("protocol", c.id().Protocol), zap.Bool("ipv6", c.id().IPv6),
				zap.Stringer("data_path", now.Path), zap.String("reason", now.Reason))
			c.port.said.fallback = now
			attempt.Fallbacks = append(attempt.Fallbacks, now)
		case !is && was != (Fallback{}):
			c.port.said.fallback = Fallback{}
			was.Reason = ""
			if c.now != nothing {
				was.Path = c.now.choice.Path
			}
			attempt.Fallbacks = append(attempt.Fallbacks, was)
		}
	}
}

// end records how an attempt went, and reports it.
func (a *Agent) end(attempt *Attempt, start time.Time, err error) {
	attempt.Took, attempt.Err = time.Since(start), err
	waiting := a.writing()
	if waiting.IsZero() && attempt.partial {
		waiting = start
	}
	switch {
	case err != nil:
		a.applying.add(&attempt.Changes)
	case waiting.IsZero():
		attempt.Changes.add(&a.late)
		attempt.Changes.add(&a.applying)
	default:
		a.late.add(&a.applying)
	}
	a.drains.attempted(attempt.adopts, err != nil || waiting.IsZero(), err)
	attempt.Conflicts, a.sockets.news = a.sockets.news, nil
	attempt.Shortages, a.sockets.shortages = a.sockets.shortages, nil
	attempt.Losers, a.losers = a.losers, nil
	if a.Observe != nil {
		a.Observe(*attempt)
	}
	p, s := &a.progress, &a.progress.status
	p.mu.Lock()
	defer p.mu.Unlock()
	s.Conflicts, s.Short = len(a.sockets.conflicts), len(a.sockets.short)
	tries := err == nil && !waiting.IsZero() && !attempt.adopts && s.LastError != nil // what has failed, and may again
	if !tries {
		s.LastError = err
	}
	if err != nil {
		s.Failures++
		if s.QueuedSince.IsZero() { // a repair
			s.QueuedSince = start
		}
	}
	if err != nil {
		return
	}
	s.Applied++
	s.ServicesPending -= attempt.Changes.Services
	s.EndpointsPending -= attempt.Changes.Endpoints
	if a.damaged {
		s.Repairs++
		a.damaged = false
	}
	s.LastApplied = time.Now()
	if !tries {
		s.QueuedSince = waiting
	}
	if waiting.IsZero() && len(p.token) > 0 { // a newer one waits, and no other
		s.QueuedSince = s.LastQueued
	}
}
