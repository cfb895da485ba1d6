package nftables

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"

	"github.com/sluice-lb/sluice/internal/netfilter/nft"
	"github.com/sluice-lb/sluice/lb"
)

// content renders Services into a table. It makes no system call. Of a Service it keeps no more than the turns of its
// backends: what was written for it is rendered again when it changes.
type content struct {
	*nft.Table
	shape  shape
	turns  map[lb.ID]turns
	last   uint32          // number that was given to a rotation
	random func(n int) int // math/rand/v2's IntN

	endpoints *endpoints
	counted   int // Services that have unit.counted
}

// turns are those of the backends of one Service, for any client and for those that get local ones.
type turns struct{ cluster, local rotation }

func newContent(t *nft.Table, s shape) *content {
	s.static(t)
	return &content{Table: t, shape: s, turns: make(map[lb.ID]turns), random: rand.IntN, endpoints: new(endpoints)}
}

// edit renders the Services that have changed, or all if the shape is another one.
func (c *content) edit(s shape, services map[lb.ID]*lb.Service, changes []lb.Change) {
	var old map[lb.ID]*lb.Service // what has changed, as it was
	before := c.shape
	if reflect.DeepEqual(before, s) {
		old = make(map[lb.ID]*lb.Service, len(changes))
	} else {
		old = maps.Clone(services)
		c.shape = s
		s.static(c.Table)
	}
	for _, x := range changes {
		old[x.ID()] = x.Old
	}
	number := func() uint32 { c.last++; return c.last }
	for id, service := range old {
		had, has := c.turns[id], turns{}
		was, is := new(unit), new(unit)
		if service != nil {
			was = before.render(service, had.cluster, had.local)
		}
		if service = services[id]; service != nil {
			has.cluster = had.cluster.next(service.Eligible(), number, c.random)
			has.local = had.local.next(service.EligibleLocal(), number, c.random)
			is = s.render(service, has.cluster, has.local)
			c.turns[id] = has
		} else {
			delete(c.turns, id)
		}
		c.exchange(was, is)
	}
	if s.ask.Count > 0 {
		s.queues(c.Table, c.counted > 0)
	}
	c.endpoints.fill(c.shape.ask.Mask, func(addr netip.AddrPort, number uint32, refs int) {
		c.number(addr, number, int32(refs))
	})
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
	c.counted += is.counted - was.counted
	for _, addr := range is.endpoints {
		c.number(addr, c.endpoints.take(addr, is.of, c.shape.ask.Mask), 1)
	}
	for _, addr := range was.endpoints {
		c.number(addr, c.endpoints.drop(addr), -1)
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
