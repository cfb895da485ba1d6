package agent

import (
	"net/netip"
	"slices"
	"sort"

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
	Joined, Left  int  // endpoints, by address and port
	Endpoints     int  // that there are
	Ready         int  // of these, those that are ready
	WereReady     int  // before
	LostEndpoints bool // no endpoint gets connections any more
}

// reported is what was reported of Services last, and which may be different since.
type reported struct {
	table *lb.Table // nil: none was reported
	names map[lb.Name]struct{}
}

// note notes which Services a delta is about.
func (r *reported) note(d *lb.Delta) {
	if r.names == nil {
		r.names = make(map[lb.Name]struct{})
	}
	for _, list := range [][]*lb.Service{d.Added, d.Removed} {
		for _, s := range list {
			r.names[s.ID.Service()] = struct{}{}
		}
	}
	for _, c := range d.Changed {
		r.names[c.New.ID.Service()] = struct{}{}
	}
	if d.Whole && r.table != nil { // it does not say what was removed
		for i := range r.table.Len() {
			r.names[r.table.At(i).ID.Service()] = struct{}{}
		}
	}
}

// changes returns what is different of Services in a table since they were reported last.
func (r *reported) changes(is *lb.Table) (out []ServiceChange) {
	was := r.table
	if was == nil {
		was = new(lb.Table)
	}
	for name := range r.names {
		if c := compare(name, was, is); c.differs() {
			out = append(out, c)
		}
	}
	r.table, r.names = is, nil
	slices.SortFunc(out, func(a, b ServiceChange) int { return a.Service.Compare(b.Service) })
	return out
}

// end returns the position after the last port of a Service. None of those before i comes after it.
func end(t *lb.Table, i int, name lb.Name) int {
	return i + sort.Search(t.Len()-i, func(n int) bool { return t.At(i+n).ID.Service().Compare(name) > 0 })
}

// comparison is that of one Service. It looks at each port once, since there may be 16,384 of them.
type comparison struct {
	ServiceChange
	was, is side
}

// side is a Service as one of the tables has it.
type side struct {
	table     *lb.Table
	next, end int                     // positions of the port to look at next, and after the last
	ports     int                     // that it has
	ready     map[netip.AddrPort]bool // its endpoints, and which of them are ready
	last      []lb.Backend            // of the port that was looked at last
	served    bool                    // any endpoint gets connections
}

func sideOf(t *lb.Table, name lb.Name) side {
	first := sort.Search(t.Len(), func(n int) bool { return t.At(n).ID.Service().Compare(name) >= 0 })
	last := end(t, first, name)
	return side{table: t, next: first, end: last, ports: last - first}
}

// port returns the next port, nil after the last.
func (s *side) port() *lb.Service {
	if s.next == s.end {
		return nil
	}
	return s.table.At(s.next)
}

// take looks at the endpoints of a port, and goes on to the next.
func (s *side) take(p *lb.Service) {
	s.next++
	s.served = s.served || len(p.Eligible()) > 0
	if sameEndpoints(p.Backends, s.last) {
		return // as nearly always
	}
	s.last = p.Backends
	if s.ready == nil {
		s.ready = make(map[netip.AddrPort]bool, len(s.last))
	}
	for i := range s.last {
		addr := s.last[i].Addr
		s.ready[addr] = s.ready[addr] || s.last[i].TakesNew()
	}
}

func sameEndpoints(a, b []lb.Backend) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].Addr != b[i].Addr || a[i].TakesNew() != b[i].TakesNew() {
			return false
		}
	}
	return true
}

// compare says what is different of one Service.
func compare(name lb.Name, was, is *lb.Table) ServiceChange {
	c := comparison{was: sideOf(was, name), is: sideOf(is, name)}
	c.Service = name
	c.run()
	return c.ServiceChange
}

func (c *comparison) run() {
	for {
		old, now := c.was.port(), c.is.port()
		if old == nil && now == nil {
			break
		}
		order := 0
		switch {
		case old == nil:
			order = 1
		case now == nil:
			order = -1
		case old != now:
			order = old.ID.Compare(now.ID)
		}
		if order <= 0 {
			c.was.take(old)
		}
		if order >= 0 {
			c.is.take(now)
		}
		if order != 0 {
			c.PortsChanged = true
		} else if old != now {
			c.Addresses = c.Addresses || !old.SameAddresses(now)
			c.Policies = c.Policies || !old.SamePolicies(now)
		}
	}
	c.Added, c.Removed, c.Ports = c.was.ports == 0, c.is.ports == 0, c.is.ports
	if c.Removed {
		c.Ports = c.was.ports
	}
	for addr, ready := range c.is.ready {
		if _, ok := c.was.ready[addr]; !ok {
			c.Joined++
		}
		if ready {
			c.Ready++
		}
	}
	for addr, ready := range c.was.ready {
		if _, ok := c.is.ready[addr]; !ok {
			c.Left++
		}
		if ready {
			c.WereReady++
		}
	}
	c.Endpoints, c.LostEndpoints = len(c.is.ready), c.was.served && !c.is.served && !c.Removed
}

// differs reports whether there is anything to report.
func (c *ServiceChange) differs() bool {
	return c.Added || c.Removed || c.PortsChanged || c.Addresses || c.Policies || c.Joined > 0 || c.Left > 0 ||
		c.Ready != c.WereReady || c.LostEndpoints
}
