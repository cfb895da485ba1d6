package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/lb"
)

// move is what one Apply does with the engines.
type move struct {
	table     *lb.Table
	choices   []Choice          // by position in the table
	count     [2][pathCount]int // of the choices, by family
	movers    []mover
	node      lb.Node
	nodePorts []netip.Addr
	unopened  map[lb.Frontend]bool // by arrange: they got no proxy port
}

// mover is a Service that has another path than before.
type mover struct {
	*lb.Service
	from, to Path
}

func (m *move) path(i int) Path { return m.choices[i].Path }

// chosen is what choose has decided, and what of.
type chosen struct {
	table   *lb.Table // nil before the first
	can     [2]abilities
	choices []Choice
	count   [2][pathCount]int
}

// choose decides the path of every Service in the table. What does not differ from the
// last time is left as it was decided then.
func (a *Agent) choose(m *move) {
	c := &a.chosen
	can := [2]abilities{a.abilities(false), a.abilities(true)}
	if c.table == nil || !can[0].equal(&c.can[0]) || !can[1].equal(&c.can[1]) {
		*c = chosen{table: new(lb.Table), can: can, choices: c.choices[:0]}
	}
	first, last := m.table.Common(c.table)
	from, to := first, m.table.Len()-last // where the table differs
	wasTo := c.table.Len() - last
	for i := from; i < wasTo; i++ {
		c.count[family(c.table.At(i).IPv6)][c.choices[i].Path]--
	}
	if grown := to - wasTo; grown > 0 {
		c.choices = slices.Insert(c.choices, wasTo, make([]Choice, grown)...)
	} else {
		c.choices = slices.Delete(c.choices, to, wasTo)
	}
	for i := from; i < to; i++ {
		s := m.table.At(i)
		c.choices[i] = choose(s, a.usual(), &can[family(s.IPv6)])
		c.count[family(s.IPv6)][c.choices[i].Path]++
	}
	c.table = m.table
	m.choices, m.count = c.choices, c.count
}

// family is the position of a family in arrays.
func family(ipv6 bool) int {
	if ipv6 {
		return 1
	}
	return 0
}

// join has each engine forward what is on its path from now on, beside what has left it
// and is not yet elsewhere. Services whose engine fails go to where they would be if it were not there; it is tried again with
// the next Apply, and the error says so. Their rules may be half there. That does no
// harm: steering comes first.
func (a *Agent) join(ctx context.Context, m *move) error {
	var errs []error
	for _, e := range a.engines() {
		services, _ := a.on(e.familyPath, m, true)
		if len(services) == 0 {
			continue // to forget what it had is for later
		}
		if err := a.syncEngine(ctx, e, services, m.node); err != nil {
			errs = append(errs, err)
			if a.paths.failed == nil {
				a.paths.failed = make(map[familyPath]error)
			}
			a.paths.failed[e.familyPath] = err
			continue
		}
		a.remember(e.familyPath, services)
	}
	if len(errs) > 0 {
		a.choose(m)
	}
	a.decide(m)
	a.carry(ctx, m)
	return errors.Join(errs...)
}

// carry hands over which backends the clients of Services with affinity are at, while the
// new path is there and the old one still has the new connections. Whoever comes for the
// first time before that ends may be forgotten. The Balancer is on the way from one engine
// to another. What cannot be handed over keeps no Service from moving: its clients may get
// other backends, once.
func (a *Agent) carry(ctx context.Context, m *move) {
	for _, s := range m.movers {
		if s.AffinityTimeout == 0 {
			continue
		}
		f := a.family(s.IPv6)
		if err := a.hand(ctx, m.concrete(s.Service), f.engine(s.from), f.engine(s.to)); err != nil {
			a.Log.Warn("clients of a Service that moves to another data path may get other endpoints",
				zap.Stringer("service", s.ID), zap.Stringer("from", s.from), zap.Stringer("data path", s.to), zap.Error(err))
		}
	}
}

// hand hands over the clients of one Service; a nil Engine is user space.
func (a *Agent) hand(ctx context.Context, s lb.Service, from, to Engine) error {
	now := a.Now()
	if from != nil {
		clients, err := from.Clients(ctx, &s, now)
		if err != nil {
			return err
		}
		a.LB.RememberClients(s.ID, clients)
	}
	if to == nil {
		return nil
	}
	clients := slices.DeleteFunc(a.LB.ServiceClients(s.ID), func(c lb.Client) bool { return now-c.LastUsed >= s.AffinityTimeout })
	if len(clients) == 0 {
		return nil
	}
	return to.Remember(ctx, &s, clients)
}

// engine returns who forwards on a path; nil on those of user space and of nobody.
func (f *Family) engine(p Path) Engine {
	switch p {
	case IPTables:
		return f.IPTables
	case IPVS:
		return f.IPVS
	}
	return nil
}

// leave has each engine forget what is on another path now, once that path has it. An
// engine that has nothing to do is told so once, since there may be something left of
// an earlier process.
func (a *Agent) leave(ctx context.Context, m *move) error {
	var errs []error
	for _, e := range a.engines() {
		failed := a.paths.failed[e.familyPath] != nil
		services, leaving := a.on(e.familyPath, m, failed) // after a failure it keeps what it has
		if !failed && (leaving || a.written.engines[e.familyPath] == nil) {
			if err := a.syncEngine(ctx, e, services, m.node); err != nil {
				errs = append(errs, err)
				services, _ = a.on(e.familyPath, m, true)
			}
		}
		a.remember(e.familyPath, services)
	}
	return errors.Join(errs...)
}

// remember notes which Services an engine has.
func (a *Agent) remember(e familyPath, services []lb.Service) {
	if a.paths.in == nil {
		a.paths.in = make(map[familyPath]map[lb.ID]struct{})
	}
	has := make(map[lb.ID]struct{}, len(services))
	for i := range services {
		has[services[i].ID] = struct{}{}
	}
	a.paths.in[e] = has
}

// on returns the Services on an engine's path, as engines take them, and with leaving
// also those that it has and that are on another path now; and whether there are such.
func (a *Agent) on(e familyPath, m *move, leaving bool) (out []lb.Service, some bool) {
	has := a.paths.in[e]
	left := len(has) // those that have not been met yet in the table
	if left == 0 && m.count[family(e.ipv6)][e.path] == 0 {
		return nil, false
	}
	for i := range m.choices {
		s := m.table.At(i)
		on := s.IPv6 == e.ipv6 && m.path(i) == e.path
		if !on && left == 0 {
			continue
		}
		_, had := has[s.ID]
		if had {
			left--
		}
		if some = some || had && !on; on || had && leaving {
			out = append(out, m.concrete(s))
		}
	}
	return out, some || left > 0
}

// concrete returns a Service with its node port as the addresses on which node ports
// are served.
func (m *move) concrete(s *lb.Service) lb.Service {
	for i := range s.Addresses {
		if s.Addresses[i].Kind != lb.NodePort {
			continue
		}
		out := *s
		out.Addresses = make([]lb.Address, 0, len(s.Addresses)+len(m.nodePorts))
		for _, addr := range s.Addresses {
			if addr.Kind != lb.NodePort {
				out.Addresses = append(out.Addresses, addr)
				continue
			}
			for _, f := range nodePortFrontends(m.table, s, addr, m.nodePorts) {
				addr.Addr = f.Addr
				out.Addresses = append(out.Addresses, addr)
			}
		}
		return out
	}
	return *s
}

// engine is one of those that there are.
type engine struct {
	familyPath
	Engine
}

// engines returns those of the families that are served, in the order in which a packet
// meets them.
func (a *Agent) engines() (out []engine) {
	for _, ipv6 := range []bool{false, true} {
		f := a.family(ipv6)
		if f.Steer == nil {
			continue
		}
		if f.IPTables != nil {
			out = append(out, engine{familyPath{ipv6, IPTables}, f.IPTables})
		}
		if f.IPVS != nil {
			out = append(out, engine{familyPath{ipv6, IPVS}, f.IPVS})
		}
	}
	return out
}

func (a *Agent) syncEngine(ctx context.Context, e engine, services []lb.Service, node lb.Node) error {
	if a.written.engines == nil {
		a.written.engines = make(map[familyPath]*forwarded)
	}
	a.written.engines[e.familyPath] = &forwarded{services, node}
	d := lb.Delta{Whole: true}
	for i := range services {
		d.Added = append(d.Added, &services[i])
	}
	if err := e.Sync(ctx, d, node); err != nil {
		delete(a.written.engines, e.familyPath)
		a.Log.Error("Services cannot be forwarded in the kernel", zap.Stringer("data path", e.path), zap.Bool("ipv6", e.ipv6), zap.Error(err))
		return fmt.Errorf("forward Services by %s: %w", e.path, err)
	}
	return nil
}

// verify reports whether all of a family is still as it was made. All are asked, since
// only who has looked knows that there is something to repair.
func (f Family) verify(ctx context.Context) (bool, error) {
	var errs []error
	all := true
	for _, v := range []interface {
		Verify(context.Context) (bool, error)
	}{f.Steer, f.Addresses, f.IPTables, f.IPVS} {
		if v == nil {
			continue
		}
		ok, err := v.Verify(ctx)
		all = all && (ok || err != nil) // else nothing is known to be missing
		errs = append(errs, err)
	}
	return all, errors.Join(errs...)
}
