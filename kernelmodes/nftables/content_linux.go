package nftables

import (
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"

	"github.com/sluice-lb/sluice/internal/netfilter/nft"
	"github.com/sluice-lb/sluice/lb"
)

// content renders Services into a table. It makes no system call. Of a Service it keeps no more than what it was
// rendered from: its chains and elements are rendered again when it changes.
type content struct {
	*nft.Table
	shape   shape
	written map[lb.ID]written
	last    uint32          // number that was given to a rotation
	random  func(n int) int // math/rand/v2's IntN

	endpoints *endpoints
	counted   int // Services that have unit.counted
}

// written is what was rendered last of a Service. It has the turns of all its backends (cluster), and of those on this
// node (local).
type written struct {
	service        *lb.Service
	cluster, local rotation
}

func (w written) of() *lb.Service { return w.service }

func newContent(t *nft.Table, s shape) *content {
	s.static(t)
	return &content{Table: t, shape: s, written: make(map[lb.ID]written), random: rand.IntN, endpoints: new(endpoints)}
}

// changes returns what a delta changes of what was rendered; a nil content has nothing.
func (c *content) changes(d *lb.Delta, ipv6 bool) []lb.Change {
	var has map[lb.ID]written
	if c != nil {
		has = c.written
	}
	return lb.Unwritten(d, ipv6, has, written.of)
}

// edit renders the Services that have changed, and before that all others if the shape is another one.
func (c *content) edit(s shape, changes []lb.Change) {
	if before := c.shape; !reflect.DeepEqual(before, s) {
		c.shape = s
		s.static(c.Table)
		for id, w := range c.written {
			c.put(id, before, w.service)
		}
	}
	for _, x := range changes {
		c.put(x.ID(), s, x.New)
	}
	if s.ask.Count > 0 {
		s.queues(c.Table, c.counted > 0)
	}
	c.endpoints.fill(c.shape.ask.Mask, func(addr netip.AddrPort, number uint32, refs int) {
		c.number(addr, number, int32(refs))
	})
}

// put replaces what was rendered for a Service, in the shape of then; nil: by nothing.
func (c *content) put(id lb.ID, before shape, service *lb.Service) {
	number := func() uint32 { c.last++; return c.last }
	had, was, is := c.written[id], new(unit), new(unit)
	if had.service != nil {
		was = before.render(had.service, had.cluster, had.local)
	}
	if service == nil {
		delete(c.written, id)
	} else {
		has := written{service: service}
		has.cluster = had.cluster.next(service.Eligible(), number, c.random)
		has.local = had.local.next(service.EligibleLocal(), number, c.random)
		is = c.shape.render(service, has.cluster, has.local)
		c.written[id] = has
	}
	c.exchange(was, is)
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
