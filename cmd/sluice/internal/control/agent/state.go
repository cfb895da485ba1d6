package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/sluice-lb/sluice/internal/lists"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/redirect"
)

// State is what an agent has applied, for that of the process that takes over.
type State struct {
	Services []*lb.Service
	Node     lb.Node
	TCPPort  uint16
	Sockets  []Socket
	Kernel   []lb.ID // what the kernel forwards without our sockets, or may
	Drains   []lb.Drain

	History
}

// Pause waits for the change that is being applied, and for engines that still write, and lets none begin until resume
// is called. What is submitted meanwhile is applied afterwards.
func (a *Agent) Pause(ctx context.Context) (resume func(), err error) {
	if resume, err = a.take(ctx); err != nil {
		return nil, err
	}
	if err = a.waitForJobs(ctx); err != nil {
		resume()
		return nil, err
	}
	return resume, nil
}

// take waits for the change that is being applied, and lets none begin until resume is called.
func (a *Agent) take(ctx context.Context) (resume func(), err error) {
	select {
	case a.busy <- struct{}{}:
		return func() { <-a.busy }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// State returns what is applied. The agent is to be paused. What has not been applied yet is where the process before
// had it.
func (a *Agent) State() State {
	s := State{Services: a.LB.Table().Services(), Node: a.want.Node, TCPPort: a.tcpPort, Drains: a.drains.all,
		Sockets: slices.Collect(maps.Values(a.sockets.open)), History: a.Status().History}
	for _, service := range s.Services {
		kernel := a.inherited == nil || a.inherited[service.ID]
		if x := a.planner.ports[service.ID]; x != nil && x.piece != nothing {
			kernel = x.piece.choice.Path != Userspace
		}
		if kernel {
			s.Kernel = append(s.Kernel, service.ID)
		}
	}
	return s
}

// Adopt begins with what another agent has applied: its table is that of LB from now
// on, and its sockets, which TCP, UDP and SCTP are to be given, are this agent's. It is for
// the start, before TakeOver and the first attempt, which make of it what is desired then; so they replace proxy ports
// that are bound to another address than Family.Bind, or not among Ports.
func (a *Agent) Adopt(s State) error {
	local, err := a.NodeAddrs()
	if err != nil {
		return fmt.Errorf("read the node's addresses: %w", err)
	}
	a.local = local
	table, _ := lb.NewTable(s.Services, a.environment().on(s.Node, local)) // its refusals have been reported before
	a.LB.Update(table)
	a.planner.prior = table
	a.reported.table = table // in the order of IDs, but for what was leaving
	if before := func(x, y *lb.Service) int { return x.ID.Compare(y.ID) }; !slices.IsSortedFunc(s.Services, before) {
		a.reported.table, _ = lb.NewTable(slices.SortedFunc(slices.Values(s.Services), before), lb.Node{})
	}
	a.tcpPort = s.TCPPort
	a.drains.all = s.Drains
	a.LB.Drain(lb.NewDrains(s.Drains, nil)) // those of nodes are known with the first Apply
	a.want = Desired{Services: lists.Of(s.Services), Node: s.Node}
	a.inherited = make(map[lb.ID]bool)
	for _, id := range s.Kernel {
		a.inherited[id] = true
	}
	for _, service := range s.Services { // connections come from where they did, until the first Apply
		if service.Protocol == lb.TCP && !a.inherited[service.ID] &&
			service.InForce(&a.LB.Defaults).Transparent == lb.On {
			a.transparent[service.ID] = true
		}
	}
	a.syncTransparency(false) // connections that need rules which no Service requests come later
	for _, so := range s.Sockets {
		a.sockets.keep(so, owner(table, so.Frontend))
	}
	a.progress.mu.Lock()
	defer a.progress.mu.Unlock()
	status := &a.progress.status
	for i := range table.Len() {
		status.count(table.At(i), 1)
	}
	status.History = s.History
	return nil
}

// Prime makes the table of what is desired that of LB, and opens the proxy ports of UDP
// and SCTP frontends, those that can be had, to which rules of a process that has crashed
// lead, and node ports: for clients that come before the first Apply. What is wrong with
// what is desired, and who else has a port, is for Apply to report. Then it opens the TCP proxy port, where these rules
// lead if it can be had: the error says why there is none.
func (a *Agent) Prime(want Desired, before redirect.Leftover) error {
	if local, err := a.NodeAddrs(); err == nil {
		a.local = local
	}
	env := a.environment()
	table, _ := lb.NewTable(env.served(want.Services.AppendTo(nil)), env.on(want.Node, a.local))
	a.LB.Update(table)
	a.sockets.reopen(table, before.Ported)
	for i := range table.Len() {
		s := table.At(i)
		if s.Protocol == lb.SCTP || env.direct[family(s.IPv6)] { // what serves them is decided later
			continue
		}
		for j := range s.Addresses {
			if s.Addresses[j].Kind == lb.NodePort {
				a.sockets.rehold(table, env.frontends(table, s, &s.Addresses[j]))
			}
		}
	}
	return a.openProxy(before.TCPPort)
}
