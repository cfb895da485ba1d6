package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/lb"
)

// forwarder is an engine. What it was passed of each service port is in its row.
type forwarder struct {
	ipv6   bool
	path   Path
	engine Engine
	begun  bool  // it has been passed something
	empty  bool  // it has nothing
	synced bool  // it makes what it was passed, or will when its job ends; else the next Sync is whole
	failed error // in this attempt: its Services go elsewhere
	node   lb.Node
	job    *job // nil: it does not write
}

// wants returns what a piece has for this engine, or nil.
func (e *forwarder) wants(p *piece) *lb.Service {
	if p.choice.Path == e.path && p.service.IPv6 == e.ipv6 {
		return p.kernel
	}
	return nil
}

// delta returns what a plan changes for the engine. What is on another path now, and may
// not be there yet, is not removed before it is to leave, but for addresses that others have now.
func (e *forwarder) delta(plan *Plan, leave, steered bool) (d lb.Delta) {
	for i := range plan.changes {
		c := &plan.changes[i]
		if c.id().IPv6 != e.ipv6 {
			continue
		}
		was, now := c.port.passed[e.path], e.wants(c.now)
		movedBefore := steered && c.old != nothing && c.old.choice.Path != e.path
		if was != nil && now == nil && !leave && c.now != nothing && !movedBefore {
			now = disowned(was, plan.table)
		}
		d.Note(was, now)
	}
	return d
}

// disowned returns a Service with those of its addresses that no other one of a table has.
func disowned(s *lb.Service, table *lb.Table) *lb.Service {
	others := func(a lb.Address) bool {
		owner, _, ok := table.Lookup(lb.Frontend{Protocol: s.Protocol, Addr: a.Addr})
		return ok && owner.ID != s.ID
	}
	if !slices.ContainsFunc(s.Addresses, others) {
		return s
	}
	left := *s
	left.Addresses = slices.DeleteFunc(slices.Clone(s.Addresses), others)
	return &left
}

// join passes to the engine what is on its path from now on.
func (e *forwarder) join(ctx context.Context, a *Agent, plan *Plan) error {
	d := e.delta(plan, false, a.steering.synced)
	if len(d.Added)+len(d.Changed) == 0 && (e.synced || e.empty) {
		return nil // to remove what it had is for later
	}
	if !e.begun {
		left, err := e.engine.Leftover(ctx)
		if err != nil {
			return fmt.Errorf("find what an earlier process has left to %s: %w", e.path, err)
		}
		if left {
			e.adoptLeftovers(plan, a)
		}
	}
	return e.sync(ctx, a, d, plan)
}

// adoptLeftovers makes the engine have what user space is to forward, too. An earlier process may have left it here,
// and it goes when it is steered. What that process forwarded in user space until now is not to be here for a moment:
// its UDP flows would move.
func (e *forwarder) adoptLeftovers(plan *Plan, a *Agent) {
	for i := range plan.changes {
		c := &plan.changes[i]
		if p := c.now; p != nothing && p.choice.Path == Userspace && p.service.IPv6 == e.ipv6 &&
			(a.inherited == nil || a.inherited[p.service.ID]) {
			c.port.passed[e.path] = masqueraded(plan.env.concrete(plan.table, p.service))
		}
	}
}

// dropMoved makes the engine drop what is on another path now, once that path has it. One that
// has nothing to do is called once, since there may be something left of an earlier process.
// After a failure it keeps what it has.
func (e *forwarder) dropMoved(ctx context.Context, a *Agent, plan *Plan) error {
	d := e.delta(plan, true, true)
	if e.failed != nil || e.job != nil || a.planner.adopting || len(d.Removed) == 0 && e.synced {
		return nil
	}
	return e.sync(ctx, a, d, plan)
}

// sync passes a change to the engine, or all that it is to have if it may have something else.
func (e *forwarder) sync(ctx context.Context, a *Agent, d lb.Delta, plan *Plan) error {
	removed, ports := d.Removed, a.planner.ports
	for _, s := range removed {
		ports[s.ID].passed[e.path] = nil
	}
	for _, s := range d.Added {
		ports[s.ID].passed[e.path] = s
	}
	for _, c := range d.Changed {
		ports[c.New.ID].passed[e.path] = c.New
	}
	if !e.synced {
		for i := range plan.changes {
			if x := plan.changes[i].port; x.gone {
				x.passed[e.path] = nil
			}
		}
		d = lb.Delta{Whole: true}
		for i := range plan.table.Len() { // in the order of the table
			if x := ports[plan.table.At(i).ID]; x != nil && x.id().IPv6 == e.ipv6 && x.passed[e.path] != nil {
				d.Note(nil, x.passed[e.path])
			}
		}
	}
	e.begun, e.node, e.empty = true, plan.node, len(d.Added) == 0 && (d.Whole || e.empty)
	if err := a.begin(ctx, e, d, removed); err != nil {
		return fmt.Errorf("forward Services by %s: %w", e.path, err)
	}
	return nil
}

// repair has the engine write again what another program has changed, before all else is looked at: until then the
// Services that it forwards may not be served. The attempt that follows makes sure of it, and reports it.
func (e *forwarder) repair(ctx context.Context, a *Agent) {
	if !e.synced {
		return
	}
	resume, err := a.take(ctx) // wait while everything is being handed over
	if err != nil {
		return // so is this process's end
	}
	defer resume()
	a.damaged = true
	if err := a.begin(ctx, e, lb.Delta{}, nil); err != nil {
		a.Log.Warn("writing rules again failed", zap.Stringer("data_path", e.path),
			zap.Bool("ipv6", e.ipv6), zap.Error(err))
	}
}

// engines returns those of the families that are steered, in the order in which a packet
// meets them.
func (a *Agent) engines() (out []*forwarder) {
	for i := range a.Families {
		f := &a.Families[i]
		for _, path := range kernelPaths {
			if f.Engines[path] == nil || f.Steer == nil {
				continue
			}
			e := &a.forwarders[i][path]
			if e.path == None {
				e.ipv6, e.path, e.empty = i == 1, path, true
			}
			e.engine = f.Engines[path] // the start may have found another one
			out = append(out, e)
		}
	}
	return out
}

// join makes the engines that have not failed forward what is on their paths from now on. Services whose engine fails
// go to where they would be without it; it is tried again with the next attempt. Their rules may be half there. That
// does no harm: steering comes first. Services whose engine takes long stay where they are. replan: an engine has
// failed, or still writes.
func (a *Agent) join(ctx context.Context, plan *Plan) (replan bool) {
	for _, e := range a.engines() {
		if e.failed != nil || e.job != nil || a.planner.adopting {
			continue
		}
		err := e.join(ctx, a, plan)
		if replan = replan || e.job != nil || err != nil; err != nil {
			a.fail(e, err)
		}
	}
	return replan
}

// dropMoved makes the engines drop what is on other paths.
func (a *Agent) dropMoved(ctx context.Context, plan *Plan) error {
	var errs []error
	for _, e := range a.engines() {
		errs = append(errs, e.dropMoved(ctx, a, plan))
	}
	return errors.Join(errs...)
}

// handClients hands over which backends the clients of Services with affinity are at, while the
// new path is there and the old one still has the new connections. A client that comes for the
// first time before that ends may be sent elsewhere. The Balancer is on the way from one engine
// to another. What cannot be handed over keeps no Service from moving: its clients may get
// other backends, once.
func (a *Agent) handClients(ctx context.Context, plan *Plan) {
	for i := range plan.changes {
		c := &plan.changes[i]
		s, from, to := c.now.service, c.old.choice.Path, c.now.choice.Path
		if !c.moves() {
			continue
		}
		log := a.Log.With(zap.Stringer("service", s.ID), zap.Stringer("protocol", s.Protocol), zap.Bool("ipv6", s.IPv6),
			zap.Stringer("from", from), zap.Stringer("data_path", to))
		log.Info("moving a Service to another data path", zap.String("reason", c.now.choice.Why))
		if s.AffinityTimeout == 0 {
			continue
		}
		engines := &a.Families[family(s.IPv6)].Engines
		if err := a.hand(ctx, plan.env.concrete(plan.table, s), engines[from], engines[to]); err != nil {
			log.Warn("clients with affinity may get other endpoints on the new data path", zap.Error(err))
		}
	}
}

// hand hands over the clients of one Service; a nil Engine is user space.
func (a *Agent) hand(ctx context.Context, s *lb.Service, from, to Engine) error {
	now := a.Now()
	if from != nil {
		clients, err := from.Clients(ctx, s, now)
		if err != nil {
			return err
		}
		a.LB.Memory().RememberClients(s.ID, clients)
	}
	if to == nil {
		return nil
	}
	expired := func(c lb.Client) bool { return now-c.LastUsed >= s.AffinityTimeout }
	clients := slices.DeleteFunc(a.LB.Memory().ServiceClients(s.ID), expired)
	if len(clients) == 0 {
		return nil
	}
	return to.Remember(ctx, s, clients)
}
