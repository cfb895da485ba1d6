package agent

import (
	"net/netip"

	"github.com/sluice-lb/sluice/lb"
)

// ServiceChange is what is different of a Service, with all of its ports in both families, since it was reported last.
type ServiceChange struct {
	Service        lb.Name
	Added, Removed bool

	Ports         int  // that it has, or had, counted in each family
	PortsChanged  bool // there are others
	Addresses     bool // ports have other addresses, or other rules there
	Policies      bool // it requests something else, or another sessionAffinity
	Joined, Left  int  // endpoints, by address
	Endpoints     int  // that there are
	Ready         int  // of these, those that are ready
	WereReady     int  // before
	LostEndpoints bool // no endpoint gets connections any more
}

// Choice returns the path of a service port as it was applied last, and why it is that; false: that is not known, since
// there is no such port, or another process has applied it. It may be called from anywhere.
func (a *Agent) Choice(id lb.ID) (Choice, bool) {
	a.planner.mu.RLock()
	defer a.planner.mu.RUnlock()
	x := a.planner.ports[id]
	if x == nil || x.piece == nothing {
		return Choice{}, false
	}
	return x.piece.choice, true
}

// changedServices compares two tables, of which the first may be nil, Service by Service. Both are in the order of IDs.
func changedServices(was, is *lb.Table) (out []ServiceChange) {
	if was == nil {
		was = new(lb.Table)
	}
	for i, j := 0, 0; i < was.Len() || j < is.Len(); {
		if i < was.Len() && j < is.Len() && was.At(i) == is.At(j) { // nearly always
			i, j = i+1, j+1
			continue
		}
		name := nextName(was, i, is, j)
		var old, now []*lb.Service
		old, i = portsOf(was, i, name)
		now, j = portsOf(is, j, name)
		if c := compare(name, old, now); c.differs() {
			out = append(out, c)
		}
	}
	return out
}

// nextName returns the Service that is first at two positions.
func nextName(was *lb.Table, i int, is *lb.Table, j int) lb.Name {
	switch {
	case i == was.Len():
		return is.At(j).ID.Service()
	case j == is.Len() || was.At(i).ID.Compare(is.At(j).ID) < 0:
		return was.At(i).ID.Service()
	}
	return is.At(j).ID.Service()
}

// portsOf returns the ports of a Service, of which one may be at i, and the position after them.
func portsOf(t *lb.Table, i int, name lb.Name) (ports []*lb.Service, next int) {
	first := i
	for first > 0 && t.At(first-1).ID.Service() == name {
		first--
	}
	for ; first < t.Len() && t.At(first).ID.Service() == name; first++ {
		ports = append(ports, t.At(first))
	}
	return ports, max(first, i)
}

// compare says what is different of one Service.
func compare(name lb.Name, was, is []*lb.Service) ServiceChange {
	c := ServiceChange{Service: name, Added: len(was) == 0, Removed: len(is) == 0, Ports: len(is)}
	if c.Removed {
		c.Ports = len(was)
	}
	known := make(map[lb.ID]*lb.Service, len(was))
	for _, s := range was {
		known[s.ID] = s
	}
	for _, s := range is {
		old := known[s.ID]
		if old == nil {
			c.PortsChanged = true
			continue
		}
		c.Addresses = c.Addresses || !old.SameAddresses(s)
		c.Policies = c.Policies || !old.SamePolicies(s)
	}
	c.PortsChanged = c.PortsChanged || len(was) != len(is)
	before, served := endpointsOf(was)
	now, serves := endpointsOf(is)
	for addr, ready := range now {
		if _, ok := before[addr]; !ok {
			c.Joined++
		}
		if ready {
			c.Ready++
		}
	}
	for addr, ready := range before {
		if _, ok := now[addr]; !ok {
			c.Left++
		}
		if ready {
			c.WereReady++
		}
	}
	c.Endpoints, c.LostEndpoints = len(now), served && !serves && !c.Removed
	return c
}

// endpointsOf returns the endpoints of the ports of a Service, and which of them are ready; and whether any gets
// connections.
func endpointsOf(ports []*lb.Service) (ready map[netip.Addr]bool, served bool) {
	ready = make(map[netip.Addr]bool)
	for _, s := range ports {
		for i := range s.Backends {
			b := &s.Backends[i]
			addr := b.Addr.Addr()
			ready[addr] = ready[addr] || b.Ready && !b.Loop && !b.Maintenance
		}
		served = served || len(s.Eligible()) > 0
	}
	return ready, served
}

// differs reports whether there is anything to report.
func (c *ServiceChange) differs() bool {
	return c.Added || c.Removed || c.PortsChanged || c.Addresses || c.Policies || c.Joined > 0 || c.Left > 0 ||
		c.Ready != c.WereReady || c.LostEndpoints
}
