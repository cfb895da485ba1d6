package iptables

import (
	"cmp"
	"maps"
	"slices"

	"github.com/sluice-lb/sluice/lb"
)

// content is all that we want to be in the kernel. It is not changed once made. Contents
// share what has not changed between them: a change of one Service among many costs little
// more than to see that the others are as they were.
type content struct {
	shape   shape
	static  []chain
	units   []*unit        // in the order of the Services
	index   map[lb.ID]int  // in units
	buckets map[bucket]int // how many entries each has
}

// unit returns that of a Service, nil if there is none.
func (c *content) unit(id lb.ID) *unit {
	if i, ok := c.index[id]; ok {
		return c.units[i]
	}
	return nil
}

// next returns the content for services. What was rendered for the same Service in the
// same shape is taken over.
func (c *content) next(s shape, services []lb.Service) *content {
	n := &content{shape: s, units: make([]*unit, len(services))}
	if c == nil || !c.shape.equal(s) {
		c = &content{}
		n.static = append(s.static(), chain{}) // the last is that of hairpin
	} else {
		n.static = c.static
	}
	moved := len(services) != len(c.units) // some Service is not where it was
	for i := range services {
		u := c.at(i, len(services), services[i].ID)
		moved = moved || u == nil || u != c.units[i]
		if u == nil || !u.service.Equal(&services[i]) {
			u = s.render(services[i])
		}
		n.units[i] = u
	}
	if n.index = c.index; moved {
		n.index = make(map[lb.ID]int, len(services))
		for i := range services {
			n.index[services[i].ID] = i
		}
	}
	n.count(c)
	n.static = append(slices.Clip(n.static[:len(n.static)-1]), s.hairpin(n.units))
	return n
}

// at returns the unit of the Service that is number i of n now. Most are where they were,
// counted from the first or from the last.
func (c *content) at(i, n int, id lb.ID) *unit {
	for _, at := range [2]int{i, i + len(c.units) - n} {
		if at >= 0 && at < len(c.units) && c.units[at].service.ID == id {
			return c.units[at]
		}
	}
	return c.unit(id)
}

// count counts the entries in buckets, from what they were in was.
func (c *content) count(was *content) {
	c.buckets = maps.Clone(was.buckets)
	if c.buckets == nil {
		c.buckets = make(map[bucket]int)
	}
	add := func(u *unit, n int) {
		if u == nil {
			return
		}
		for i := range u.entries {
			at := u.entries[i].bucket
			if c.buckets[at] += n; c.buckets[at] == 0 {
				delete(c.buckets, at)
			}
		}
	}
	for _, id := range c.changed(was) {
		add(c.unit(id), 1)
		add(was.unit(id), -1)
	}
}

// changed returns the Services that are not the same in was, in an order that is always
// the same: those of c, and after them those that have gone.
func (c *content) changed(was *content) []lb.ID {
	now, old := c.units, was.units
	for len(now) > 0 && len(old) > 0 && now[0] == old[0] {
		now, old = now[1:], old[1:]
	}
	for len(now) > 0 && len(old) > 0 && now[len(now)-1] == old[len(old)-1] {
		now, old = now[:len(now)-1], old[:len(old)-1]
	}
	var here, gone []lb.ID
	for i, u := range now {
		if len(now) == len(old) && u == old[i] {
			continue
		}
		if was.unit(u.service.ID) != u {
			here = append(here, u.service.ID)
		}
	}
	for i, u := range old {
		if len(now) == len(old) && u.service.ID == now[i].service.ID {
			continue
		}
		if c.unit(u.service.ID) == nil {
			gone = append(gone, u.service.ID)
		}
	}
	slices.SortFunc(here, compareID)
	slices.SortFunc(gone, compareID)
	return append(here, gone...)
}

func compareID(a, b lb.ID) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol))
}
