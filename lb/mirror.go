package lb

import "maps"

// Mirror keeps the services of one address family as deltas say, and which of them have
// changed, for those that act on a change and may fail. The zero Mirror is empty, for one goroutine.
type Mirror struct {
	services map[ID]*Service
	changed  map[ID]*Service // as they were at the last call of Changed
	order    []ID            // of changed
}

// Fold takes over what d says of the services of a family. A service that is given again
// and says the same has not changed.
func (m *Mirror) Fold(d *Delta, ipv6 bool) {
	if m.services == nil {
		m.services, m.changed = make(map[ID]*Service), make(map[ID]*Service)
	}
	if d.Whole {
		gone := maps.Clone(m.services)
		for _, s := range d.Added {
			delete(gone, s.ID)
		}
		for id := range gone {
			m.put(id, nil)
		}
	}
	for _, s := range d.Removed {
		m.put(s.ID, nil)
	}
	for _, c := range d.Changed {
		if c.New.IPv6 == ipv6 {
			m.put(c.New.ID, c.New)
		}
	}
	for _, s := range d.Added {
		if s.IPv6 == ipv6 {
			m.put(s.ID, s)
		}
	}
}

func (m *Mirror) put(id ID, s *Service) {
	was := m.services[id]
	if s == nil {
		delete(m.services, id)
	} else {
		m.services[id] = s
	}
	if was.Equal(s) {
		return
	}
	if _, known := m.changed[id]; !known {
		m.changed[id] = was
		m.order = append(m.order, id)
	}
}

// Services returns those that there are, by ID. It is the Mirror's own.
func (m *Mirror) Services() map[ID]*Service { return m.services }

// Changed returns the services that differ from what they were at the last call, each once.
// Old is nil for one that has come, and New for one that has gone.
func (m *Mirror) Changed() (out []Change) {
	for _, id := range m.order {
		c := Change{Old: m.changed[id], New: m.services[id]}
		if c.Old == c.New {
			continue // it came and went
		}
		c.Addresses = c.Old == nil || c.New == nil || !sameAddresses(c.Old.Addresses, c.New.Addresses)
		out = append(out, c)
	}
	m.order = nil
	if len(m.changed) > 0 {
		m.changed = make(map[ID]*Service) // the first delta has made it large
	}
	return out
}

// All returns the services as if all had come now.
func (m *Mirror) All() []Change {
	out := make([]Change, 0, len(m.services))
	for _, s := range m.services {
		out = append(out, Change{New: s, Addresses: true})
	}
	return out
}

// ID names the service.
func (c Change) ID() ID {
	if c.New == nil {
		return c.Old.ID
	}
	return c.New.ID
}
