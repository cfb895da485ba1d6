package nftables

import (
	"cmp"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"

	"github.com/sluice-lb/sluice/internal/netfilter/nft"
	"github.com/sluice-lb/sluice/lb"
)

// content renders Services into a table. It makes no system call.
type content struct {
	*nft.Table
	shape  shape
	units  map[lb.ID]*unit
	last   uint32          // number that was given to a rotation
	random func(n int) int // math/rand/v2's IntN
}

func newContent(t *nft.Table, s shape) *content {
	s.static(t)
	return &content{Table: t, shape: s, units: make(map[lb.ID]*unit), random: rand.IntN}
}

// edit renders the Services that have changed, or all if the shape is another one.
func (c *content) edit(s shape, services map[lb.ID]*lb.Service, changes []lb.Change) {
	var changed []lb.ID
	if !reflect.DeepEqual(c.shape, s) {
		changed = slices.Collect(maps.Keys(services))
		c.shape = s
		s.static(c.Table)
	}
	for _, x := range changes {
		changed = append(changed, x.ID())
	}
	number := func() uint32 { c.last++; return c.last }
	for _, id := range changed {
		was, is := cmp.Or(c.units[id], new(unit)), new(unit)
		if service := services[id]; service != nil {
			is = s.render(service, was.cluster.next(service.Eligible(), number, c.random),
				was.local.next(service.EligibleLocal(), number, c.random))
			c.units[id] = is
		} else {
			delete(c.units, id)
		}
		c.exchange(was, is)
	}
}

// exchange replaces what one Service had by what it needs. Elements that it had already are counted up and
// down again, which writes nothing.
func (c *content) exchange(was, is *unit) {
	for _, set := range slices.Concat(is.clients, is.shards) {
		c.AddSet(set)
	}
	for name, rules := range is.chains {
		c.SetChain(name, nil, rules)
	}
	for _, e := range is.entries {
		c.Add(e.set, e.Element, 1)
	}
	for _, e := range was.entries {
		c.Add(e.set, e.Element, -1)
	}
	for name := range was.chains {
		if _, stays := is.chains[name]; !stays {
			c.DeleteChain(name)
		}
	}
	for _, set := range was.clients {
		if !slices.ContainsFunc(is.clients, func(s nft.Set) bool { return s.Name == set.Name }) {
			c.DeleteSet(set.Name)
		}
	}
}
