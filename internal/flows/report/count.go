package report

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/internal/flows"
	"github.com/sluice-lb/sluice/internal/look"
	"github.com/sluice-lb/sluice/lb"
)

// What is open is what a walk through conntrack finds, which costs the data path nothing. What was is known by that and
// by the ends that conntrack reports, or by the counts of ipvs.

const (
	// fresh is how old counts may be at least that who looks is given, and freshShare how many times as old as it took
	// to count: those who look take a twentieth of a processor at the most, all together.
	fresh      = time.Second
	freshShare = 20
)

// Count is what is counted of the connections and flows of a Service, or of one of its endpoints.
type Count struct {
	Open uint64

	// Total has those that have ended, too, but for those that user space has chosen an endpoint for, which counts
	// them; In and Out have what all have moved, with the headers of IP. Zero unless Counted.
	Counted bool
	Total   uint64
	In, Out flows.Count
}

func (c *Count) add(o *Count) {
	c.Open += o.Open
	c.Total += o.Total
	c.In.Packets, c.In.Bytes = c.In.Packets+o.In.Packets, c.In.Bytes+o.In.Bytes
	c.Out.Packets, c.Out.Bytes = c.Out.Packets+o.Out.Packets, c.Out.Bytes+o.Out.Bytes
}

// atLeast raises what only grows to what it was.
func (c *Count) atLeast(was *Count) {
	c.Total = max(c.Total, was.Total)
	for _, n := range []struct{ now, was *flows.Count }{{&c.In, &was.In}, {&c.Out, &was.Out}} {
		n.now.Packets, n.now.Bytes = max(n.now.Packets, n.was.Packets), max(n.now.Bytes, n.was.Bytes)
	}
}

// Counted is what is counted of a Service: more than the sum of its endpoints, where some have gone.
type Counted struct {
	Count
	Chosen    bool // by user space, which may count what is open, too
	Endpoints map[netip.AddrPort]Count
}

func (c *Counted) add(at netip.AddrPort, n *Count) {
	c.Count.add(n)
	if c.Endpoints == nil {
		c.Endpoints = make(map[netip.AddrPort]Count)
	}
	one := c.Endpoints[at]
	one.add(n)
	c.Endpoints[at] = one
}

// Counts are those of Services on kernel paths, and of those that have left them with something open.
type Counts map[lb.ID]*Counted

// of returns those of a Service, which are made if need be.
func (c Counts) of(id lb.ID) *Counted {
	if c[id] == nil {
		c[id] = new(Counted)
	}
	return c[id]
}

// clone returns a copy that has nothing in common with c.
func (c Counts) clone() Counts {
	out := make(Counts, len(c))
	for id, of := range c {
		out[id] = &Counted{Count: of.Count, Endpoints: maps.Clone(of.Endpoints)}
	}
	return out
}

// counting is what Flows have counted.
type counting struct {
	mu      sync.Mutex // guards the following
	ended   Counts     // since the first process of those that have handed over to each other
	most    Counts     // the sums of conntrack's, at their highest
	halted  bool       // another process counts
	looking sync.Mutex // guards the following; it comes before mu
	last    Counts
	at      time.Time
	took    time.Duration
	failing bool
}

// Counts returns what is counted of Services that the kernel forwards. It may be a moment old, and must not be changed.
func (f *Flows) Counts() Counts {
	c := &f.counts
	c.looking.Lock()
	defer c.looking.Unlock()
	if !f.InUse() {
		c.last, c.at = nil, time.Time{}
		return nil
	}
	if now := time.Now(); now.Sub(c.at) > max(fresh, freshShare*c.took) {
		all, err := f.count()
		if err != nil && !c.failing {
			f.Log.Error("connections that the kernel forwards are not counted", zap.Error(err))
		}
		c.last, c.failing = all, err != nil
		c.at, c.took = time.Now(), time.Since(now)
	}
	return c.last
}

// count counts anew.
func (f *Flows) count() (all Counts, err error) {
	h, err := f.lookAround()
	if err != nil {
		return nil, err
	}
	if f.Accounting {
		f.counts.mu.Lock()
		all = f.counts.ended.clone()
		f.counts.mu.Unlock()
	} else {
		all = make(Counts)
	}
	for _, ipv6 := range []bool{false, true} {
		var some Counts
		err := flows.Each(nil, ipv6, func() { some = make(Counts) }, func(e *flows.Entry) {
			s, path, ok := f.of(e, h)
			if !ok {
				return
			}
			n := Count{}
			if !flows.IsOver(e) {
				n.Open = 1
			}
			if f.Accounting && !path.Counts {
				n.Total, n.In, n.Out = path.total(), e.In, e.Out
			}
			some.of(s.ID).add(e.Replies, &n)
		})
		if err != nil {
			return nil, err
		}
		for id, of := range some {
			for at, n := range of.Endpoints {
				all.of(id).add(at, &n)
			}
		}
	}
	f.counts.keep(all)
	if err := f.ReadCounts(func(of lb.Frontend, sum Count, each map[netip.AddrPort]Count) {
		if s, _, ok := f.LB.Table().Lookup(of); ok {
			all.of(s.ID).addRead(sum, each)
		}
	}); err != nil {
		return nil, err
	}
	for _, s := range f.LB.Table().Services() {
		if f.PathOf(s.ID) != (Path{}) {
			all.of(s.ID) // it may have nothing
		}
	}
	for id, of := range all {
		path := f.PathOf(id)
		of.Counted, of.Chosen = f.Accounting || path.Counts, path.Chosen
		for at, n := range of.Endpoints {
			n.Counted = of.Counted
			of.Endpoints[at] = n
		}
	}
	return all, nil
}

// keep lets no sum of conntrack's be less than before: what ends between a look at what has ended and the walk is in
// neither until the next, and a counter that goes down is one of a process that has started anew.
func (c *counting) keep(all Counts) {
	c.mu.Lock()
	defer c.mu.Unlock()
	kept := make(Counts, len(all))
	for id, of := range all {
		if was := c.most[id]; was != nil {
			of.atLeast(&was.Count)
		}
		kept[id] = &Counted{Count: of.Count}
	}
	c.most = kept
}

// total returns what a connection adds to Count.Total.
func (p Path) total() uint64 {
	if p.Chosen {
		return 0
	}
	return 1
}

// addRead adds what a path has counted itself. What it forgets with an endpoint the sum still has.
func (c *Counted) addRead(rest Count, each map[netip.AddrPort]Count) {
	for at, n := range each {
		c.add(at, &n)
		rest.Total -= min(n.Total, rest.Total)
		rest.In, rest.Out = less(rest.In, n.In), less(rest.Out, n.Out)
	}
	c.Count.add(&rest)
}

func less(a, b flows.Count) flows.Count {
	return flows.Count{Packets: a.Packets - min(a.Packets, b.Packets), Bytes: a.Bytes - min(a.Bytes, b.Bytes)}
}

// gone counts an entry that has ended.
func (f *Flows) gone(i *look.Info, path Path) {
	c := &f.counts
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.halted || path.Counts {
		return
	}
	c.ended.of(i.Service).add(i.Backend, &Count{Total: path.total(),
		In:  flows.Count{Packets: i.Kernel.PacketsIn, Bytes: i.In},
		Out: flows.Count{Packets: i.Kernel.PacketsOut, Bytes: i.Out}})
}

// prune forgets what has ended of Services that have gone, and, but for the sum of their Service, of endpoints.
func (f *Flows) prune() {
	c, table := &f.counts, f.LB.Table()
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, of := range c.ended {
		s, ok := table.Service(id)
		if !ok {
			delete(c.ended, id)
			delete(c.most, id)
			continue
		}
		is := make(map[netip.AddrPort]bool, len(s.Backends))
		for _, b := range s.Backends {
			is[b.Addr] = true
		}
		maps.DeleteFunc(of.Endpoints, func(at netip.AddrPort, _ Count) bool { return !is[at] })
	}
}

// Ended is what has ended of a Service, for the process that takes over.
type Ended struct {
	Service   lb.ID
	Sum       Count
	Endpoints map[netip.AddrPort]Count
}

// Ended returns what has ended so far, ordered by Service.
func (f *Flows) Ended() (all []Ended) {
	f.counts.mu.Lock()
	defer f.counts.mu.Unlock()
	for id, of := range f.counts.ended {
		all = append(all, Ended{id, of.Count, maps.Clone(of.Endpoints)})
	}
	slices.SortFunc(all, func(a, b Ended) int { return a.Service.Compare(b.Service) })
	return all
}

// Halt ends the counting of what ends, until Resume, and returns what differs from what Ended has returned: the process
// that takes over goes on with both.
func (f *Flows) Halt(before []Ended) (since []Ended) {
	f.counts.mu.Lock()
	f.counts.halted = true
	f.counts.mu.Unlock()
	known := make(map[lb.ID]*Ended, len(before))
	for i := range before {
		known[before[i].Service] = &before[i]
	}
	for _, e := range f.Ended() {
		was := known[e.Service]
		if was != nil && was.Sum == e.Sum {
			continue
		}
		if was != nil {
			maps.DeleteFunc(e.Endpoints, func(at netip.AddrPort, n Count) bool { return was.Endpoints[at] == n })
		}
		since = append(since, e)
	}
	return since
}

// Resume goes on counting: no process has taken over.
func (f *Flows) Resume() {
	f.whys.resume()
	f.counts.mu.Lock()
	defer f.counts.mu.Unlock()
	f.counts.halted = false
}

// Seed begins with what the process before has counted: of a Service, and of an endpoint, the last one holds.
func (f *Flows) Seed(all []Ended) {
	f.counts.mu.Lock()
	defer f.counts.mu.Unlock()
	for i := range all {
		of := f.counts.ended.of(all[i].Service)
		if of.Count = all[i].Sum; of.Endpoints == nil {
			of.Endpoints = make(map[netip.AddrPort]Count)
		}
		maps.Copy(of.Endpoints, all[i].Endpoints)
	}
}
