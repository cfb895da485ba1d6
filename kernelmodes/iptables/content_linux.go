package iptables

import (
	"cmp"
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

// changes returns what a delta changes of what was rendered; a nil content has nothing.
func (c *content) changes(d *lb.Delta, ipv6 bool) []lb.Change {
	var has map[lb.ID]*unit
	if c != nil {
		has = c.units
	}
	return lb.Unwritten(d, ipv6, has, (*unit).of)
}

// edit renders the Services that have changed, and before that all others if the shape is another one.
func (c *content) edit(s shape, changes []lb.Change) {
	anew := !reflect.DeepEqual(c.shape, s)
	c.shape = s
	s.static(c.Ruleset)
	if anew {
		for id, u := range c.units {
			c.put(id, u.service)
		}
	}
	for _, x := range changes {
		c.put(x.ID(), x.New)
	}
	c.SetChain(nat(chainHairpin), s.hairpin(c.units))
}

// put replaces what was rendered for a Service; nil: by nothing.
func (c *content) put(id lb.ID, service *lb.Service) {
	was, is := cmp.Or(c.units[id], new(unit)), new(unit)
	if service == nil {
		delete(c.units, id)
	} else {
		is = c.shape.render(service)
		c.units[id] = is
	}
	c.exchange(was, is)
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
