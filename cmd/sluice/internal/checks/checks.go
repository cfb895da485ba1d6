package checks

import (
	"context"
	"errors"
	"hash/maphash"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/proxyproto"
	"github.com/sluice-lb/sluice/internal/session"
	"github.com/sluice-lb/sluice/lb"
)

const (
	turnEvery      = 100 * time.Millisecond
	maxFlying      = 64  // checks in flight
	maxOfAService  = 16  // of these, of one Service
	maxOfNamespace = 32  // and of the Services of one namespace
	maxReason      = 256 // bytes of why a check has failed
	postponedAfter = time.Second
)

// Stats counts checks.
type Stats struct {
	Passed, Failed uint64
	Postponed      uint64 // checks that began late, since there were too many
	Failing        int    // endpoints, once for each service port
}

// Checker makes the checks that the Services of a Balancer request.
type Checker struct {
	lb      *lb.Balancer
	results chan result
	changed chan struct{} // has a value when there may be another table
	flying  int           // in flight; of Run
	running sync.WaitGroup
	seed    maphash.Seed

	table   *lb.Table
	probes  map[string]*probe // by annotation; nil: it is bad
	targets map[target]*state
	busy    map[lb.Name]int // checks in flight of a Service, and by the namespace alone of all of its Services

	passed, failed, postponed atomic.Uint64
}

// target is what is checked at once for several ports of a Service.
type target struct {
	service lb.Name
	probe   *probe
	place   // that is asked
}

// state is what is known of a target.
type state struct {
	of     []endpoint // in the order of the table
	due    time.Time
	flying bool
	row    int32 // checks in a row that have ended alike
	passes bool  // they have passed
	gone   bool  // it is no target any more
}

// endpoint is one of a service port.
type endpoint struct {
	id   lb.ID
	addr netip.AddrPort
}

// result is what has come of a check.
type result struct {
	target target
	state  *state
	err    error
}

// New returns a Checker.
func New(b *lb.Balancer) *Checker {
	return &Checker{lb: b, results: make(chan result, maxFlying), changed: make(chan struct{}, 1),
		seed: maphash.MakeSeed(), targets: make(map[target]*state), busy: make(map[lb.Name]int)}
}

// Stats may be called from anywhere.
func (c *Checker) Stats() Stats {
	return Stats{c.passed.Load(), c.failed.Load(), c.postponed.Load(), c.lb.Failing()}
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
			c.end(r)
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
			c.begin(ctx, now)
			if stopped = len(c.targets) == 0; stopped {
				turn.Stop()
			}
		}
	}
}

// follow makes the targets those of a new table.
func (c *Checker) follow(now time.Time) {
	probes, had, first := c.probes, c.targets, c.probes == nil
	c.probes, c.targets = make(map[string]*probe), make(map[target]*state)
	for i := range c.table.Len() {
		s := c.table.At(i)
		text := s.Requests().ReadinessProbe
		if text == "" {
			continue
		}
		p, name := c.probe(text, probes), s.ID.Service()
		if p == nil {
			continue
		}
		for j := range s.Backends {
			if b := &s.Backends[j]; b.Ready && !b.Loop {
				c.add(target{name, p, p.at(s, b.Addr)}, endpoint{s.ID, b.Addr}, had, now)
			}
		}
	}
	if first && c.lb.Failing() > 0 {
		c.unfail()
	}
	for t, was := range had {
		was.gone = true
		stay := make(map[endpoint]bool)
		if is := c.targets[t]; is != nil {
			if slices.Equal(is.of, was.of) {
				continue
			}
			for _, e := range is.of {
				stay[e] = true
			}
		}
		for _, e := range was.of {
			if !stay[e] {
				c.lb.Checked(e.id, e.addr, nil, eventloop.Now())
			}
		}
	}
}

// probe returns what an annotation requests, which is read once; nil: it is of no use.
func (c *Checker) probe(text string, before map[string]*probe) *probe {
	if len(text) > maxText {
		return nil
	}
	p, known := c.probes[text]
	if !known {
		if p, known = before[text]; !known {
			p, _ = parse(text)
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
				c.lb.Checked(e.id, e.addr, nil, eventloop.Now())
			}
		}
	}
}

// at returns where an endpoint of s is checked. PROXY headers are for the port that gets those of clients, too.
func (p *probe) at(s *lb.Service, addr netip.AddrPort) place {
	if p.port != 0 && p.port != addr.Port() {
		return place{addr: netip.AddrPortFrom(addr.Addr(), p.port)}
	}
	if p.datagrams != (s.Protocol == lb.UDP) {
		return place{addr: addr}
	}
	return place{addr, proxyproto.Version(s.Requests().ProxyVersion(s.Protocol))}
}

// add makes an endpoint one of a target's.
func (c *Checker) add(t target, e endpoint, had map[target]*state, now time.Time) {
	is := c.targets[t]
	if is == nil {
		is = &state{passes: true}
		if was := had[t]; was != nil {
			is.due, is.row, is.passes, is.flying = was.due, was.row, was.passes, was.flying
		} else {
			spread := time.Duration(maphash.Comparable(c.seed, t) % uint64(t.probe.period))
			is.due = now.Add(t.probe.delay + spread)
		}
		c.targets[t] = is
	}
	is.of = append(is.of, e)
}

// begin begins the checks that are due, as far as there is room: that of each Service which has waited for longest,
// then the second one of each.
func (c *Checker) begin(ctx context.Context, now time.Time) {
	if c.flying >= maxFlying {
		return
	}
	var due []target
	for t, s := range c.targets {
		if !s.flying && !s.due.After(now) {
			due = append(due, t)
		}
	}
	slices.SortFunc(due, func(a, b target) int { return c.targets[a].due.Compare(c.targets[b].due) })
	turns, had := make(map[target]int), make(map[lb.Name]int)
	for _, t := range due {
		turns[t] = had[t.service]
		had[t.service]++
	}
	slices.SortStableFunc(due, func(a, b target) int { return turns[a] - turns[b] })
	for _, t := range due {
		if c.flying < maxFlying && c.busy[t.service] < maxOfAService && c.busy[t.namespace()] < maxOfNamespace {
			c.start(ctx, t, now)
		}
	}
}

// namespace returns what the Services of the namespace are counted by.
func (t *target) namespace() lb.Name { return lb.Name{Namespace: t.service.Namespace} }

// start starts a check.
func (c *Checker) start(ctx context.Context, t target, now time.Time) {
	s := c.targets[t]
	if now.Sub(s.due) > postponedAfter {
		c.postponed.Add(1)
	}
	s.flying, s.due = true, now.Add(t.probe.period)
	c.flying++
	c.busy[t.service]++
	c.busy[t.namespace()]++
	c.running.Go(func() {
		within, cancel := context.WithTimeout(ctx, t.probe.timeout)
		defer cancel()
		c.results <- result{t, s, short(t.probe.once(within, t.place))} // there is room for all in flight
	})
}

// short returns why a check has failed in not too many words: the other side chooses some.
func short(err error) error {
	switch {
	case err == nil || session.Shortage(err):
		return err
	case errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded):
		return errTimeout
	}
	text := err.Error()
	if len(text) > maxReason {
		text = strings.ToValidUTF8(text[:maxReason], "") + "..."
	}
	return errors.New(text)
}

var errTimeout = errors.New("no answer in time")

// end notes what has come of a check.
func (c *Checker) end(r result) {
	c.flying--
	for _, name := range []lb.Name{r.target.service, r.target.namespace()} {
		if c.busy[name]--; c.busy[name] == 0 {
			delete(c.busy, name)
		}
	}
	s := r.state
	if s.gone { // a new table has come meanwhile
		if s = c.targets[r.target]; s == nil {
			return
		}
	}
	s.flying = false
	switch {
	case session.Shortage(r.err): // of this host
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
	if p := r.target.probe; passes && s.row < p.successes || !passes && s.row < p.failures {
		return
	}
	for _, e := range s.of {
		c.lb.Checked(e.id, e.addr, r.err, eventloop.Now())
	}
}
