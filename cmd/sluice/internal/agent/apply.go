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
// new, so that steering, the slow part, is changed only once:
//
//  1. table: the new Services, and the addresses that are about to go
//  2. sockets: those of new UDP frontends and node ports are opened
//  3. steering: from the old frontends to the new
//  4. sockets: those of old UDP frontends and node ports are closed
//  5. table: the new Services alone
func (a *Agent) Apply(ctx context.Context, want Desired) (err error) {
	a.init()
	start := time.Now()
	defer func() { a.settle(start, err) }()

	local, err := a.localAddrs()
	if err != nil {
		return fmt.Errorf("read the node's addresses: %w", err)
	}
	a.local = local
	node := want.Node
	node.Addresses = slices.Concat(node.Addresses, local)
	services := a.served(want.Services)
	table, refused := a.LB.Table().Next(services, node)
	between, leaving := merge(services, a.applied.Services)
	if leaving {
		t, _ := table.Next(between, node) // its refusals are those above, and leaving addresses with a new owner
		a.LB.Update(t)
	} else {
		a.LB.Update(table)
	}
	a.UDP.TableChanged()

	plan := redirect.Plan{TCPPort: a.TCPPort, Inside: want.Node.PodCIDRs}
	wanted, socketErr := a.arrange(table, a.nodePorts(), &plan)
	a.complain(errors.Join(refused, a.sockets.conflict()))
	for _, f := range a.families() {
		if err := f.Steer.Sync(ctx, plan); err != nil {
			// Addresses that are about to go may still be steered: they stay.
			a.applied = Desired{between, want.Node}
			return errors.Join(socketErr, fmt.Errorf("steer traffic: %w", err))
		}
	}
	a.closeUnwanted(wanted)
	if leaving {
		a.LB.Update(table)
		a.UDP.TableChanged()
	}
	a.applied = Desired{services, want.Node}
	a.describe(table)
	return socketErr
}

// served leaves out the Services of families and protocols that are not served.
func (a *Agent) served(services []lb.Service) []lb.Service {
	left := func(s lb.Service) bool {
		return s.Protocol == lb.SCTP || a.family(s.IPv6).Steer == nil
	}
	if !slices.ContainsFunc(services, left) {
		return services
	}
	return slices.DeleteFunc(slices.Clone(services), left)
}

func (a *Agent) family(ipv6 bool) *Family {
	if ipv6 {
		return &a.IPv6
	}
	return &a.IPv4
}

func (a *Agent) localAddrs() ([]netip.Addr, error) {
	if a.LocalAddrs == nil {
		return nil, nil
	}
	return a.LocalAddrs()
}

// nodePorts returns the addresses on which node ports are served.
func (a *Agent) nodePorts() []netip.Addr {
	if a.NodePorts == nil {
		return []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}
	}
	return a.NodePorts(a.local)
}

// arrange adds every address to the plan and opens the sockets that are needed. It
// returns the sockets that are wanted. The error names the frontends that got no
// proxy port; the plan is good for the others.
func (a *Agent) arrange(table *lb.Table, nodePorts []netip.Addr, plan *redirect.Plan) (map[lb.Frontend]struct{}, error) {
	wanted := make(map[lb.Frontend]struct{})
	var errs []error
	services := table.Services()
	for i := range services {
		s := &services[i]
		for _, addr := range s.Addresses {
			inside, outside := s.Verdicts(addr)
			if addr.Kind == lb.NodePort {
				for _, f := range onNode(s, addr, nodePorts) {
					if _, owner, _ := table.Lookup(f); owner.Kind != lb.NodePort {
						continue // an exact address goes before a node port
					}
					wanted[f] = struct{}{}
					if a.sockets.hold(a, f, s.ID) && inside == lb.Serve {
						plan.Accept = append(plan.Accept, f)
					}
					exclude(plan, f, inside, outside)
				}
				continue
			}
			f := lb.Frontend{Protocol: s.Protocol, Addr: addr.Addr}
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
				continue
			}
			wanted[f] = struct{}{}
			plan.Ported = append(plan.Ported, redirect.Ported{Frontend: f, Port: port})
		}
	}
	return wanted, errors.Join(errs...)
}

// onNode returns the frontends that a node port is: one for each address of its family.
func onNode(s *lb.Service, addr lb.Address, nodePorts []netip.Addr) (out []lb.Frontend) {
	for _, ip := range nodePorts {
		if ip.Is6() == s.IPv6 {
			out = append(out, lb.Frontend{Protocol: s.Protocol, Addr: netip.AddrPortFrom(ip, addr.Addr.Port())})
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

// merge returns the new Services with the addresses of the old ones added that no
// new Service has, so that what is still steered is still served, and whether there
// are any.
func merge(services, old []lb.Service) (between []lb.Service, leaving bool) {
	if slices.EqualFunc(services, old, sameAddresses) { // as if only endpoints changed
		return services, false
	}
	owned := make(map[lb.Frontend]struct{})
	byID := make(map[lb.ID]int, len(services))
	for i := range services {
		byID[services[i].ID] = i
		for _, addr := range services[i].Addresses {
			owned[lb.Frontend{Protocol: services[i].Protocol, Addr: addr.Addr}] = struct{}{}
		}
	}
	between = services
	for _, s := range old {
		var gone []lb.Address
		for _, addr := range s.Addresses {
			if _, ok := owned[lb.Frontend{Protocol: s.Protocol, Addr: addr.Addr}]; !ok {
				gone = append(gone, addr)
			}
		}
		if len(gone) == 0 {
			continue
		}
		if !leaving { // copy before the first change: services stays what it was
			between, leaving = slices.Clone(services), true
		}
		if i, ok := byID[s.ID]; ok {
			between[i].Addresses = slices.Concat(between[i].Addresses, gone)
			continue
		}
		s.Addresses = gone
		between = append(between, s)
	}
	return between, leaving
}

// sameAddresses reports whether a and b are the same Service at the same addresses.
func sameAddresses(a, b lb.Service) bool {
	return a.ID == b.ID && slices.EqualFunc(a.Addresses, b.Addresses, func(x, y lb.Address) bool { return x.Addr == y.Addr })
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

// describe puts the counts of what is in force into the status.
func (a *Agent) describe(table *lb.Table) {
	services := table.Services()
	frontends, backends := 0, 0
	for i := range services {
		frontends += len(services[i].Addresses)
		backends += len(services[i].Backends)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.status.Services, a.status.Frontends, a.status.Backends = len(services), frontends, backends
}
