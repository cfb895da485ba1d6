package agent

import (
	"net/netip"
	"reflect"
	"slices"
	"sync"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/policies"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/redirect"
)

// row is a service port that is applied, or is to be.
type row struct {
	service *lb.Service // of the table
	gone    bool        // from the table, which had this last
	piece   *piece      // that is applied, or nothing
	dirty   bool        // its piece may not be that of the table
	behind  bool        // an engine is to write, or to end, before it has all that is requested
	said    said

	passed [pathCount]*lb.Service // what each engine was passed of it; nil: nothing, or to remove it
}

// said is what was last reported of a service port: each is reported when it begins, is another, or is over.
type said struct {
	fallback Fallback             // zero: it is on the path that was requested
	policies []policies.Shortfall // that its path does not have
	loop     []netip.AddrPort     // its endpoints that lead back to Sluice
	own      netip.Addr           // its address that is the node's own
	loses    bool                 // addresses to others
}

func (x *row) id() lb.ID { return x.service.ID }

// elsewhere reports whether an engine is to lose it.
func (x *row) elsewhere() bool {
	for path, s := range x.passed {
		if s != nil && Path(path) != x.piece.choice.Path {
			return true
		}
	}
	return false
}

// change is a service port whose piece may be another one.
type change struct {
	port      *row
	old, now  *piece
	postponed bool // it waits for an engine that writes, or for a change that does, and stays as it is
	lags      bool // it goes on with what its engine has of it, until that has written the rest
}

func (c *change) id() lb.ID { return c.port.id() }

// differs reports whether sockets, steering or engines have to change.
func (c *change) differs() bool {
	old, now := c.old, c.now
	return old.choice.Path != now.choice.Path || !slices.Equal(old.sockets, now.sockets) ||
		!slices.EqualFunc(old.entries, now.entries, redirect.Entry.Equal) ||
		now.kernel != nil && !now.kernel.Equal(old.kernel)
}

// Plan says what is to change.
type Plan struct {
	whole   bool // every service port is in changes
	changes []change
	table   *lb.Table
	node    lb.Node
	env     environment
	delayed map[lb.ID]Choice // of Services that would be elsewhere by now (settling)
	pieces  map[lb.ID]*piece // those of changes, once pieceAt was called
}

func (p *Plan) delay(id lb.ID, c Choice) {
	if p.delayed == nil {
		p.delayed = make(map[lb.ID]Choice)
	}
	p.delayed[id] = c
}

// choose decides the path of a Service.
func (p *Plan) choose(s *lb.Service) Choice {
	if c, ok := p.delayed[s.ID]; ok {
		return c
	}
	return p.env.choose(s)
}

// writes reports whether executing the plan means to write rules.
func (p *Plan) writes() bool {
	return slices.ContainsFunc(p.changes, func(c change) bool { return c.differs() })
}

// planner remembers what is applied, and which service ports are to be looked at.
type planner struct {
	healthy  func(*lb.Service) *lb.Service // leaves out what is ejected, for paths that do not; nil: nothing is
	engines  *[2][pathCount]forwarder      // by family
	adopting bool                          // engines are passed nothing in this attempt
	settling

	table *lb.Table // what is requested; nil: nothing is yet
	prior *lb.Table // whose owners keep their addresses in the first table; nil: there is none
	node  lb.Node
	env   environment
	ports map[lb.ID]*row
	mu    sync.RWMutex // held to write ports and their pieces, and by other goroutines to read them
	dirty []*row
	whole bool // all pieces may be others
}

// pieceAt returns the piece that has a frontend when the plan is carried out, and the address there; or nothing.
func (p *planner) pieceAt(plan *Plan, f lb.Frontend) (*piece, *lb.Address) {
	s, owned, ok := plan.table.Lookup(f)
	if !ok {
		return nothing, new(lb.Address)
	}
	if plan.pieces == nil {
		plan.pieces = make(map[lb.ID]*piece, len(plan.changes))
		for i := range plan.changes {
			plan.pieces[plan.changes[i].id()] = plan.changes[i].now
		}
	}
	if now := plan.pieces[s.ID]; now != nil {
		return now, owned
	}
	if x := p.ports[s.ID]; x != nil {
		return x.piece, owned
	}
	return nothing, owned
}

// next makes the table of services, and notes what differs from the one before.
func (p *planner) next(services []*lb.Service, node lb.Node, env *environment) (lb.Delta, error) {
	var table *lb.Table
	var delta lb.Delta
	var err error
	switch {
	case p.table != nil:
		table, delta, err = p.table.Next(services, node)
	case p.prior != nil:
		table, delta, err = p.prior.Anew(services, node)
		p.prior = nil
	default:
		table, delta, err = new(lb.Table).Anew(services, node)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ports == nil {
		p.ports = make(map[lb.ID]*row)
	}
	p.table, p.node = table, node
	if delta.Whole {
		p.whole = true
		for _, x := range p.ports {
			x.gone = true
			p.mark(x)
		}
		for _, s := range delta.Added {
			p.note(s, false)
		}
		return delta, err
	}
	for _, s := range delta.Added {
		p.note(s, false)
		p.overlaps(s, env.nodePorts)
	}
	for _, s := range delta.Removed {
		p.note(s, true)
		p.overlaps(s, env.nodePorts)
	}
	for _, c := range delta.Changed {
		p.note(c.New, false)
		p.overlaps(c.New, env.nodePorts)
		if c.Addresses {
			p.overlaps(c.Old, env.nodePorts)
		}
	}
	return delta, err
}

// note notes what a service port is now, or has been until it went.
func (p *planner) note(s *lb.Service, gone bool) {
	x := p.ports[s.ID]
	if x == nil {
		x = &row{piece: nothing}
		p.ports[s.ID] = x
	}
	x.service, x.gone = s, gone
	p.mark(x)
}

func (p *planner) mark(x *row) {
	if !x.dirty {
		x.dirty = true
		p.dirty = append(p.dirty, x)
	}
}

// overlaps marks the services whose node ports are at an exact address of one.
func (p *planner) overlaps(s *lb.Service, nodePorts []netip.Addr) {
	for i := range s.Addresses {
		addr := s.Addresses[i].Addr
		if s.Addresses[i].Kind == lb.NodePort || !slices.Contains(nodePorts, addr.Addr()) {
			continue
		}
		everywhere := netip.IPv4Unspecified()
		if s.IPv6 {
			everywhere = netip.IPv6Unspecified()
		}
		f := lb.Frontend{Protocol: s.Protocol, Addr: netip.AddrPortFrom(everywhere, addr.Port())}
		if owner, _, ok := p.table.Lookup(f); ok {
			if x := p.ports[owner.ID]; x != nil { // else it is noted after this one
				p.mark(x)
			}
		}
	}
}

// reconsider marks those of some services that the kernel forwards, and reports whether there are any.
func (p *planner) reconsider(ids []lb.ID) (any bool) {
	for _, id := range ids {
		if x := p.ports[id]; x != nil && x.piece.kernel != nil {
			p.mark(x)
			any = true
		}
	}
	return any
}

// plan compares what is applied with what the table comes to. It changes nothing.
func (p *planner) plan(env *environment) *Plan {
	plan := &Plan{whole: p.whole || !reflect.DeepEqual(env, &p.env), table: p.table, node: p.node, env: *env}
	ports := p.dirty
	if plan.whole {
		ports = make([]*row, 0, len(p.ports))
		for i := range p.table.Len() {
			ports = append(ports, p.ports[p.table.At(i).ID])
		}
		for _, x := range p.dirty {
			if x.gone {
				ports = append(ports, x)
			}
		}
	}
	plan.changes = make([]change, len(ports))
	for i, x := range ports {
		now := nothing
		if !x.gone {
			choice := p.steady(x.service, x.piece.choice, env.choose(x.service), env)
			if choice.until != 0 {
				plan.delay(x.service.ID, choice)
			}
			now = env.piece(p.table, x.service, choice)
			if now.kernel != nil && p.healthy != nil {
				now.kernel = p.healthy(now.kernel)
			}
		}
		plan.changes[i] = change{port: x, old: x.piece, now: now}
	}
	p.postpone(plan.changes)
	return plan
}

// executed notes that a plan is executed. The service ports of lacking are looked at again, and those that settle.
func (p *planner) executed(plan *Plan, lacking []*row) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range plan.changes {
		c := &plan.changes[i]
		c.port.piece, c.port.dirty, c.port.behind = c.now, false, c.postponed || c.lags
		if c.port.gone && !c.postponed && !c.port.elsewhere() {
			delete(p.ports, c.id())
		}
	}
	clear(p.dirty) // lets go of what has gone
	p.env, p.whole, p.dirty = plan.env, false, p.dirty[:0]
	for _, x := range lacking {
		p.mark(x)
	}
	for i := range plan.changes {
		if c := &plan.changes[i]; c.now.choice.until != 0 || c.port.behind || c.port.elsewhere() {
			p.mark(c.port)
		}
	}
}

// delayed reports whether a change is one to a cheaper path that waits from now on.
func (c *change) delayed() bool { return c.now.choice.until != 0 && c.old.choice.until == 0 }

// moves reports whether a change is a move to another path.
func (c *change) moves() bool {
	return c.old != nothing && c.now != nothing && c.old.choice.Path != c.now.choice.Path
}

// Choice returns the path of a service port as it was applied last, and why it is that; false: that is not known, since
// there is no such port, it is not applied yet, or another process has applied it. It may be called from anywhere.
func (a *Agent) Choice(id lb.ID) (Choice, bool) {
	a.planner.mu.RLock()
	defer a.planner.mu.RUnlock()
	x := a.planner.ports[id]
	if x == nil {
		return Choice{}, false
	}
	c := x.piece.choice
	c.Writing = x.behind
	return c, x.piece != nothing
}
