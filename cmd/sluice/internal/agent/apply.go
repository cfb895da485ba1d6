package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/redirect"
)

// Apply brings what is desired into force. It is for the start, before Run, and
// for Run itself. After an error the data path serves both what was and what is
// to be, as far as it got.
//
// Adding goes table, sockets, steering; removing goes steering, sockets, table.
// Both at once need a table in between that holds the old addresses beside the
// new, so that steering, the slow part, is changed only once. A Service that moves
// from one path to another is on both in between, and a new flow of it takes the one
// that comes first: steering before iptables before ipvs.
//
//  1. table: the new Services, and the addresses that are about to go
//  2. sockets: those of new UDP and SCTP frontends and node ports are opened
//  3. engines: they get the Services that are new on their paths, or changed
//  4. steering: from the old frontends to the new
//  5. engines: they lose the Services that are on other paths now
//  6. sockets: those of old UDP and SCTP frontends and node ports are closed
//  7. table: the new Services alone
//
// Where the host holds the service addresses there is no steering. It gets the new
// ones before all this, and loses the old ones after it: a table and a socket on
// every address, and an address below every socket.
//
// The table has the Services of all paths, so that a flow in user space goes on there
// when its Service has moved, and node ports are held on all paths. A UDP flow has no
// end and moves with its Service; conntrack entries are deleted by whoever steers or
// forwards from now on, and by whoever has done so.
func (a *Agent) Apply(ctx context.Context, want Desired) error {
	a.init()
	a.mu.Lock()
	a.note(&want.Changes)
	a.applying.add(&a.pending)
	a.mu.Unlock()
	_, err := a.apply(ctx, want) // at once: only Run keeps a pace
	return err
}

// apply is Apply of what has been noted. If rules have to be written and it is too soon
// for that, it does step 1 and returns how long to wait before it is called again.
func (a *Agent) apply(ctx context.Context, want Desired) (wait time.Duration, err error) {
	resume, err := a.Pause(ctx) // wait while everything is being handed over
	if err != nil {
		return 0, fmt.Errorf("begin a change: %w", err)
	}
	defer resume()
	start := time.Now()
	defer func() {
		if wait == 0 {
			a.settle(start, err)
		}
	}()

	local, err := a.NodeAddrs()
	if err != nil {
		return 0, fmt.Errorf("read the node's addresses: %w", err)
	}
	a.local = local
	node := want.Node
	node.Addresses = slices.Concat(node.Addresses, local)
	a.paths.failed = nil // those that did not work are tried again
	services := a.served(want.Services)
	table, _, refused := a.LB.Table().Next(services, node)
	leaving := table.Leaving(a.LB.Table())
	holdErr := a.holdAddresses(ctx, services, leaving)
	if len(leaving) > 0 {
		a.LB.Update(table.Beside(leaving))
	} else {
		a.LB.Update(table)
	}
	a.tableChanged()

	move := &move{table: table, node: node, nodePorts: a.nodePorts()}
	a.choose(move)
	if wait = a.pace.wait(start); wait > 0 && a.writes(move, want) {
		a.inForce(Desired{Services: merge(services, leaving), Node: want.Node, Checks: want.Checks})
		a.putOff()
		return wait, nil
	}
	wait = 0
	wanted, plan, socketErr := a.arrange(move, want)
	if a.differ(move, plan) {
		a.pace.note(start)
	}
	moveErr := a.join(ctx, move)
	if moveErr != nil { // what an engine should have had is for steering
		a.spareTCP = plan.TCP[:0]
		wanted, plan, socketErr = a.arrange(move, want)
	}
	if a.Conflict != nil { // who tells of them
		a.complain(refused)
	} else {
		a.complain(errors.Join(refused, a.sockets.conflict()))
	}
	if err := a.steer(ctx, plan); err != nil {
		// Addresses that are about to go may still be steered: they stay.
		a.inForce(Desired{Services: merge(services, leaving), Node: want.Node, Checks: want.Checks})
		return 0, errors.Join(holdErr, socketErr, moveErr, err)
	}
	moveErr = errors.Join(moveErr, a.leave(ctx, move))
	a.closeUnwanted(wanted)
	for _, addr := range a.Retired {
		a.TCP.Unlisten(addr)
	}
	a.Retired = nil
	if len(leaving) > 0 {
		a.LB.Update(table)
		a.tableChanged()
		holdErr = errors.Join(holdErr, a.holdAddresses(ctx, services, nil))
	}
	a.inForce(Desired{Services: services, Node: want.Node, Checks: want.Checks})
	a.describe(table)
	a.tellBegun(table, move.unopened)
	return 0, errors.Join(holdErr, socketErr, moveErr)
}

// steer has the families steer as planned. The memory of the plan before is for the next.
func (a *Agent) steer(ctx context.Context, plan *redirect.Plan) error {
	if was := a.written.plan; was != nil && was != plan {
		a.spareTCP = was.TCP[:0]
	}
	a.written.plan = nil
	for _, f := range a.families() {
		if f.Steer == nil {
			continue
		}
		if err := f.Steer.Sync(ctx, *plan); err != nil {
			return fmt.Errorf("steer traffic: %w", err)
		}
	}
	a.written.plan = plan
	return nil
}

// holdAddresses has the host hold the addresses of the services, each one while any
// port of it is in use, whether it has endpoints or not: a client is refused by the host
// that has the address and no socket, and by nobody if no host has it.
func (a *Agent) holdAddresses(ctx context.Context, services, leaving []lb.Service) error {
	var errs []error
	for _, ipv6 := range []bool{false, true} {
		f := a.family(ipv6)
		if f.Addresses == nil {
			continue
		}
		var hold []netip.Addr
		for _, list := range [][]lb.Service{services, leaving} {
			for i := range list {
				if list[i].IPv6 != ipv6 {
					continue
				}
				for _, addr := range list[i].Addresses {
					if addr.Kind != lb.NodePort {
						hold = append(hold, addr.Addr.Addr())
					}
				}
			}
		}
		errs = append(errs, f.Addresses.Sync(ctx, hold))
	}
	return errors.Join(errs...)
}

// notLoopback returns the addresses by which SCTP clients on the node can be served.
func notLoopback(local []netip.Addr) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(local), netip.Addr.IsLoopback)
}

// served leaves out the Services that nobody can forward.
func (a *Agent) served(services []lb.Service) []lb.Service {
	can := [2]abilities{a.abilities(false), a.abilities(true)}
	if can[0].all() && can[1].all() {
		return services
	}
	left := func(s lb.Service) bool { return choose(&s, a.usual(), &can[family(s.IPv6)]).Path == Nobody }
	if !slices.ContainsFunc(services, left) {
		return services
	}
	return slices.DeleteFunc(slices.Clone(services), left)
}

// tableChanged tells those of the data path who hold on to backends.
func (a *Agent) tableChanged() {
	a.UDP.TableChanged()
	if a.SCTP != nil {
		a.SCTP.TableChanged()
	}
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

// nodePorts returns the addresses on which node ports are served.
func (a *Agent) nodePorts() []netip.Addr {
	if a.NodePorts == nil {
		return []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}
	}
	return a.NodePorts(a.local)
}

// arrange plans what becomes of every address and opens the sockets that are needed. It
// returns the sockets that are wanted. The error names the frontends that got no
// proxy port; the plan is good for the others.
func (a *Agent) arrange(move *move, want Desired) (map[lb.Frontend]struct{}, *redirect.Plan, error) {
	wanted := make(map[lb.Frontend]struct{})
	plan := &redirect.Plan{TCPPort: a.TCPPort, TCP: a.spareTCP, Inside: want.Node.PodCIDRs, Local: notLoopback(a.local)}
	a.spareTCP = nil
	move.unopened = make(map[lb.Frontend]bool)
	var errs []error
	table := move.table
	var idle []owned // that nobody serves, in a family whose addresses the host holds
	for i := range table.Len() {
		s := table.At(i)
		steered := move.path(i) == Userspace
		direct := a.family(s.IPv6).Addresses != nil
		for _, addr := range s.Addresses {
			inside, outside := table.Verdicts(i, &addr)
			if direct && inside != lb.Serve && outside != lb.Serve {
				idle = append(idle, idleSCTP(table, s, addr, move.nodePorts)...)
				continue // nobody listens, so that the host refuses
			}
			if addr.Kind == lb.NodePort {
				for _, f := range nodePortFrontends(table, s, addr, move.nodePorts) {
					if s.Protocol == lb.SCTP && !steered {
						continue // a listener of ours may answer every packet that comes to its port
					}
					wanted[f] = struct{}{}
					held := a.sockets.hold(a, f, s.ID)
					if !steered {
						continue // the kernel does not leave it to the socket but by loopback
					}
					if held && inside == lb.Serve {
						plan.Accept = append(plan.Accept, f)
					}
					exclude(plan, f, inside, outside)
				}
				continue
			}
			if !steered {
				continue
			}
			f := lb.Frontend{Protocol: s.Protocol, Addr: addr.Addr}
			if direct {
				wanted[f] = struct{}{}
				a.sockets.hold(a, f, s.ID)
				continue
			}
			exclude(plan, f, inside, outside)
			if inside != lb.Serve && outside != lb.Serve {
				continue
			}
			if len(addr.Sources) > 0 {
				plan.Restricted = append(plan.Restricted, redirect.Restricted{Frontend: f, Sources: addr.Sources})
			}
			if s.Protocol == lb.TCP {
				plan.TCP = append(plan.TCP, addr.Addr)
				continue
			}
			port, err := a.sockets.steered(a, f)
			if err != nil {
				errs = append(errs, fmt.Errorf("open proxy port for %s of %s: %w", f, s.ID, err))
				move.unopened[f] = true
				continue
			}
			wanted[f] = struct{}{}
			plan.Ported = append(plan.Ported, redirect.Ported{Frontend: f, Port: port})
		}
	}
	// By now it is known who forwards SCTP.
	if a.RefuseSCTP != nil && a.RefuseSCTP() {
		for _, o := range idle {
			wanted[o.frontend] = struct{}{}
			a.sockets.hold(a, o.frontend, o.id)
		}
	}
	admit(plan, want.Checks)
	return wanted, plan, errors.Join(errs...)
}

// admit has the plan let in what asks for health checks, whoever forwards the Services.
// Where a frontend has such a port what is planned for it holds.
func admit(plan *redirect.Plan, checks []netip.AddrPort) {
	if len(checks) == 0 {
		return
	}
	planned := make(map[lb.Frontend]bool, len(plan.TCP))
	for _, addr := range plan.TCP {
		planned[lb.Frontend{Protocol: lb.TCP, Addr: addr}] = true
	}
	for _, f := range slices.Concat(plan.Accept, plan.Refuse, plan.Drop) {
		planned[f] = true
	}
	for _, addr := range checks {
		if f := (lb.Frontend{Protocol: lb.TCP, Addr: addr}); !planned[f] {
			plan.Accept = append(plan.Accept, f)
		}
	}
}

// owned is a frontend of a Service.
type owned struct {
	frontend lb.Frontend
	id       lb.ID
}

// idleSCTP returns the frontends of an address of an SCTP Service that nobody serves.
func idleSCTP(table *lb.Table, s *lb.Service, addr lb.Address, nodePorts []netip.Addr) (out []owned) {
	if s.Protocol != lb.SCTP {
		return nil
	}
	frontends := []lb.Frontend{{Protocol: lb.SCTP, Addr: addr.Addr}}
	if addr.Kind == lb.NodePort {
		frontends = nodePortFrontends(table, s, addr, nodePorts)
	}
	for _, f := range frontends {
		out = append(out, owned{f, s.ID})
	}
	return out
}

// nodePortFrontends returns the frontends that a node port is: one for each address of
// its family. An exact address goes before it.
func nodePortFrontends(table *lb.Table, s *lb.Service, addr lb.Address, nodePorts []netip.Addr) (out []lb.Frontend) {
	for _, ip := range nodePorts {
		f := lb.Frontend{Protocol: s.Protocol, Addr: netip.AddrPortFrom(ip, addr.Addr.Port())}
		if ip.Is6() != s.IPv6 {
			continue
		}
		if _, owner, _ := table.Lookup(f); owner.Kind == lb.NodePort {
			out = append(out, f)
		}
	}
	return out
}

// exclude adds to the plan who is refused or dropped at f.
func exclude(plan *redirect.Plan, f lb.Frontend, inside, outside lb.Verdict) {
	switch {
	case inside == lb.Refuse && outside == lb.Refuse:
		plan.Refuse = append(plan.Refuse, f)
	case inside == lb.Drop && outside == lb.Drop:
		plan.Drop = append(plan.Drop, f)
	case outside == lb.Drop:
		plan.DropOutside = append(plan.DropOutside, f)
	}
}

// merge returns services with the addresses of leaving added, so that what is still
// steered is still served.
func merge(services, leaving []lb.Service) []lb.Service {
	between := slices.Clone(services)
	byID := make(map[lb.ID]lb.Service, len(leaving))
	for _, s := range leaving {
		byID[s.ID] = s
	}
	for i := range between {
		if s, ok := byID[between[i].ID]; ok {
			between[i].Addresses = slices.Concat(between[i].Addresses, s.Addresses)
			delete(byID, s.ID)
		}
	}
	for _, s := range leaving {
		if _, alone := byID[s.ID]; alone {
			between = append(between, s)
		}
	}
	return between
}

// complain logs what cannot be served, once for each new reason.
func (a *Agent) complain(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != a.complaint {
		a.Log.Warn("a part of the Services cannot be served", zap.Error(err))
	}
	a.complaint = text
}

// described is counts of what is in force.
type described struct {
	table               *lb.Table // nil before the first
	frontends, backends int
	noLocal             [2]NoLocal
}

// count adds, or takes away, what services of a table count from one position to another.
func (d *described) count(table *lb.Table, from, to, sign int) {
	for i := from; i < to; i++ {
		s := table.At(i)
		d.frontends += sign * len(s.Addresses)
		d.backends += sign * len(s.Backends)
		d.noLocal[family(s.IPv6)].count(table, i, sign)
	}
}

// describe puts the counts of what is in force into the status. It counts what was not in
// force when it did so last.
func (a *Agent) describe(table *lb.Table) {
	d := &a.described
	was := d.table
	if was == nil {
		was = new(lb.Table)
	}
	first, last := table.Common(was)
	d.count(was, first, was.Len()-last, -1)
	d.count(table, first, table.Len()-last, 1)
	d.table = table
	a.mu.Lock()
	defer a.mu.Unlock()
	a.status.Services, a.status.Frontends, a.status.Backends, a.status.NoLocal = table.Len(), d.frontends, d.backends, d.noLocal
	a.status.Paths, a.status.Unmet = a.paths.count, 0
	for _, s := range a.paths.special {
		if s.Unmet != "" {
			a.status.Unmet++
		}
	}
}

// count adds the service port at a position, or takes it away.
func (n *NoLocal) count(table *lb.Table, i, sign int) {
	internal, external := 0, 0
	addresses := table.At(i).Addresses
	for j := range addresses {
		addr := &addresses[j]
		if !addr.Local {
			continue
		}
		switch inside, outside := table.Verdicts(i, addr); {
		case addr.Kind == lb.ClusterIP && inside == lb.Drop:
			internal = 1
		case addr.Kind != lb.ClusterIP && outside == lb.Drop:
			external = 1
		}
	}
	n.Internal += sign * internal
	n.External += sign * external
}
