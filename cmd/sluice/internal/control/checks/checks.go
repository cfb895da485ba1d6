package checks

import (
	"context"
	"hash/maphash"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/probes"
	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/session"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

const (
	// turnEvery is how often checks begin. A check keeps its slot until the turn after its end, so the slots bound the
	// rate of checks, too.
	turnEvery      = 250 * time.Millisecond
	maxSlots       = 256
	leastSlots     = 8
	postponedAfter = time.Second
	tolerated      = 500 * time.Millisecond // by which a check may end after its timeout
)

// Stats counts checks.
type Stats struct {
	Passed, Failed uint64
	Postponed      uint64 // checks that began late, since there were too many
	Failing        int    // endpoints, once for each service port
}

// Checker makes the checks that the Services of a Balancer request.
type Checker struct {
	lb      *balancer.Balancer
	results chan result
	changed chan struct{} // has a value when there may be another table
	running sync.WaitGroup
	seed    maphash.Seed

	table   *lb.Table
	probes  map[string]*probes.Probe // by annotation; nil: it is bad
	targets map[target]*state
	turns   turns
	ended   []*state // since the last turn

	passed, failed, postponed atomic.Uint64
}

// target is what is checked at once for several ports of a Service.
type target struct {
	service lb.Name
	probe   *probes.Probe
	place   probes.Place // that is asked
}

// state is what is known of a target.
type state struct {
	target
	service *serviceTurn
	of      []endpoint // in the order of the table
	before  []endpoint // of, of the table before
	due     time.Time
	flying  bool
	row     int32 // checks in a row that have ended alike
	passes  bool  // they have passed
	gone    bool  // it is no target any more
}

// endpoint is one of a service port.
type endpoint struct {
	id   lb.ID
	addr netip.AddrPort
}

// result is what has come of a check.
type result struct {
	state *state
	err   error
	late  bool // this process was stopped meanwhile, so the error says nothing of the endpoint
}

// New returns a Checker, beside so many file descriptors of the data path (0: not known).
func New(b *balancer.Balancer, descriptors int64) *Checker {
	slots := int64(maxSlots)
	if descriptors > 0 {
		slots = max(leastSlots, min(maxSlots, descriptors/32)) // a part of the reserve, which is an eighth
	}
	return &Checker{lb: b, results: make(chan result, slots), changed: make(chan struct{}, 1),
		seed: maphash.MakeSeed(), targets: make(map[target]*state), turns: newTurns(slots)}
}

// Stats may be called from anywhere.
func (c *Checker) Stats() Stats {
	return Stats{c.passed.Load(), c.failed.Load(), c.postponed.Load(), c.lb.Health().Failing()}
}

// Changed says that the Balancer may have another table. It does not wait.
func (c *Checker) Changed() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// Run makes checks until ctx ends. While none is requested nothing wakes it but Changed.
func (c *Checker) Run(ctx context.Context) {
	defer c.running.Wait()
	turn, stopped := time.NewTicker(turnEvery), false
	defer turn.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case r := <-c.results:
			c.end(r, time.Now())
		case <-c.changed:
			if stopped {
				turn.Reset(turnEvery)
				stopped = false
			}
		case now := <-turn.C:
			if table := c.lb.Table(); table != c.table {
				c.table = table
				c.follow(now)
			}
			for _, s := range c.ended {
				c.turns.release(s)
			}
			c.ended = c.ended[:0]
			c.turns.begin(now, func(s *state) { c.start(ctx, s, now) })
			if stopped = len(c.targets) == 0; stopped {
				turn.Stop()
			}
		}
	}
}

// follow makes the targets those of a new table.
func (c *Checker) follow(now time.Time) {
	known, had, first := c.probes, c.targets, c.probes == nil
	c.probes, c.targets = make(map[string]*probes.Probe), make(map[target]*state)
	c.turns.reset()
	for i := range c.table.Len() {
		s := c.table.At(i)
		text := s.Requests().ReadinessProbe
		if text == "" {
			continue
		}
		p, name := c.probe(text, known), s.ID.Service()
		if p == nil {
			continue
		}
		for j := range s.Backends {
			if b := &s.Backends[j]; b.Ready && !b.Loop {
				c.add(target{name, p, p.At(s, b.Addr)}, endpoint{s.ID, b.Addr}, had, now)
			}
		}
	}
	if first && c.lb.Health().Failing() > 0 {
		c.unfail()
	}
	for t, was := range had {
		if c.targets[t] == nil {
			was.gone, was.before, was.of = true, was.of, nil
		}
		if slices.Equal(was.of, was.before) {
			continue
		}
		stay := make(map[endpoint]bool)
		for _, e := range was.of {
			stay[e] = true
		}
		for _, e := range was.before {
			if !stay[e] {
				c.lb.Health().Checked(e.id, e.addr, 0, nil, eventloop.Now())
			}
		}
	}
}

// probe returns what an annotation requests, which is read once; nil: it is of no use.
func (c *Checker) probe(text string, before map[string]*probes.Probe) *probes.Probe {
	if len(text) > probes.MaxText {
		return nil
	}
	p, known := c.probes[text]
	if !known {
		if p, known = before[text]; !known {
			p, _ = probes.Parse(text)
		}
		c.probes[text] = p
	}
	return p
}

// unfail ends what the process before has found of endpoints that are not checked any more.
func (c *Checker) unfail() {
	checked := make(map[endpoint]bool)
	for _, s := range c.targets {
		for _, e := range s.of {
			checked[e] = true
		}
	}
	for i := range c.table.Len() {
		s := c.table.At(i)
		for j := range s.Backends {
			if e := (endpoint{s.ID, s.Backends[j].Addr}); !checked[e] {
				c.lb.Health().Checked(e.id, e.addr, 0, nil, eventloop.Now())
			}
		}
	}
}

// add makes an endpoint one of a target's.
func (c *Checker) add(t target, e endpoint, had map[target]*state, now time.Time) {
	s := c.targets[t]
	if s == nil {
		if s = had[t]; s != nil {
			s.before, s.of = s.of, nil
		} else {
			spread := time.Duration(maphash.Comparable(c.seed, t) % uint64(t.probe.Period))
			s = &state{target: t, passes: true, due: now.Add(t.probe.Delay + spread)}
		}
		s.service = c.turns.service(t.service)
		c.targets[t] = s
		if !s.flying {
			c.turns.wait(s)
		}
	}
	s.of = append(s.of, e)
}

// start starts a check.
func (c *Checker) start(ctx context.Context, s *state, now time.Time) {
	if now.Sub(s.due) > postponedAfter {
		c.postponed.Add(1)
	}
	if s.flying = true; now.Sub(s.due) > turnEvery {
		s.due = now // else two checks would be closer than a period
	}
	s.due = s.due.Add(s.probe.Period)
	c.running.Go(func() {
		began := time.Now()
		within, cancel := context.WithTimeout(ctx, s.probe.Timeout)
		defer cancel()
		err := s.probe.Ask(within, s.place)
		late := err != nil && time.Since(began) > s.probe.Timeout+tolerated
		c.results <- result{s, err, late} // there is room for all in flight
	})
}

// end notes what has come of a check.
func (c *Checker) end(r result, now time.Time) {
	s := r.state
	c.ended = append(c.ended, s)
	s.flying = false
	if s.gone {
		return
	}
	if s.due.Before(now) {
		s.due = now // it has taken longer than its period
	}
	c.turns.wait(s)
	switch {
	case r.late || session.Shortage(r.err): // of this host
		return
	case r.err == nil:
		c.passed.Add(1)
	default:
		c.failed.Add(1)
	}
	passes := r.err == nil
	if s.row++; passes != s.passes {
		s.row, s.passes = 1, passes
	}
	if passes && s.row < s.probe.Successes || !passes && s.row < s.probe.Failures {
		return
	}
	for _, e := range s.of {
		c.lb.Health().Checked(e.id, e.addr, s.probe.Protocol(), r.err, eventloop.Now())
	}
}
