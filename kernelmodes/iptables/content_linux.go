package iptables

import (
	"cmp"
	"maps"
	"reflect"
	"slices"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/lb"
)

// content renders Services into a ruleset. It makes no system call.
type content struct {
	*netfilter.Ruleset
	shape shape
	units map[lb.ID]*unit
}

// newContent fills a ruleset with what does not depend on Services.
func newContent(r *netfilter.Ruleset, s shape) *content {
	for table, names := range always {
		for _, name := range names {
			r.SetChain(netfilter.Place{Table: table, Chain: name}, nil)
		}
	}
	for _, j := range jumps {
		r.AddJump(j)
	}
	return &content{Ruleset: r, shape: s, units: make(map[lb.ID]*unit)}
}

// edit renders the Services that have changed, or all if the shape is another one.
func (c *content) edit(s shape, services map[lb.ID]*lb.Service, changes []lb.Change) {
	var changed []lb.ID
	if !reflect.DeepEqual(c.shape, s) {
		changed = slices.Collect(maps.Keys(services))
	}
	c.shape = s
	s.static(c.Ruleset)
	for _, x := range changes {
		changed = append(changed, x.ID())
	}
	for _, id := range changed {
		was, is := cmp.Or(c.units[id], new(unit)), new(unit)
		if service := services[id]; service != nil {
			is = s.render(service)
			c.units[id] = is
		} else {
			delete(c.units, id)
		}
		c.exchange(was, is)
	}
	c.SetChain(nat(chainHairpin), s.hairpin(services))
}

// exchange replaces what one Service had by what it needs.
func (c *content) exchange(was, is *unit) {
	for name, rules := range is.chains {
		c.SetChain(nat(name), rules)
	}
	for name := range was.chains {
		if _, stays := is.chains[name]; !stays {
			c.DeleteChain(nat(name))
		}
	}
	for _, e := range is.entries {
		if !slices.Contains(was.entries, e) {
			c.AddToBucket(e.Bucket, e.rule)
		}
	}
	for _, e := range was.entries {
		if !slices.Contains(is.entries, e) {
			c.DeleteFromBucket(e.Bucket, e.rule)
		}
	}
}
