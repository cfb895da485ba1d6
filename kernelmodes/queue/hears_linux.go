package queue

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-lb/sluice/internal/netfilter/conntrack"
	"github.com/sluice-lb/sluice/lb"
)

// hearsFor is how long conntrack's events are heard after an endpoint has failed, so that one that few connections go
// to is ejected, too.
const hearsFor = int64(10 * time.Minute)

// hearing says whether conntrack's events are heard. While anyone listens each entry of this host has an extension for
// them, which each of its packets writes to (nf_ct_deliver_cached_events): that costs a request on an open connection
// 1 % (bench/results/inside.md). So they are heard while a Service needs them, and when an endpoint may have failed.
//
// Else the few connections that are followed are looked at. One that has no entry was refused, or a rule of this node
// has dropped it: no endpoint is to blame for that, and the events say it of the next ones.
type hearing struct {
	on atomic.Bool

	mu       sync.Mutex // guards the following
	events   *conntrack.Events
	services map[lb.ID]bool // those on the path, and whether they need events
	need     int            // how many do
	until    int64          // they are heard for a failure's sake
}

// set notes a Service, and remove that it has gone from the path. The caller holds h.mu.
func (h *hearing) set(id lb.ID, needs bool) {
	h.remove(id)
	if h.services == nil {
		h.services = make(map[lb.ID]bool)
	}
	if h.services[id] = needs; needs {
		h.need++
	}
}

func (h *hearing) remove(id lb.ID) {
	if h.services[id] {
		h.need--
	}
	delete(h.services, id)
}

// startHearing joins conntrack's groups if a Service needs its events, and end has no more of them.
func (s *Server) startHearing() {
	h := &s.following.hearing
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = s.following.events
	h.on.Store(true) // conntrack.Listen has joined the groups
	s.settle()
}

func (h *hearing) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = nil
	h.on.Store(false)
}

// nextLook is when a connection is looked at next that was not answered as far as is known.
func (s *Server) nextLook() int64 {
	if s.following.hearing.on.Load() {
		return firstLook
	}
	return int64(lookEvery)
}

// Expect says that rules are about to be written, and returns when conntrack's events are heard if a Service needs
// them: of a flow that began before the kernel may have none. Changed has to follow.
func (s *Server) Expect(d *lb.Delta) error {
	h := &s.following.hearing
	h.mu.Lock()
	defer h.mu.Unlock()
	expect := func(x *lb.Service) {
		if s.needsEvents(x) {
			h.set(x.ID, true)
		}
	}
	for _, x := range d.Added {
		expect(x)
	}
	for _, x := range d.Changed {
		expect(x.New)
	}
	if h.need == 0 {
		return nil
	}
	return h.hear(true)
}

// Changed says what a family has on the path when the engine has synchronized, and has flows be found that were there
// before: where Services have come, and where it begins to matter what is in flight.
func (s *Server) Changed(d *lb.Delta, ipv6 bool) {
	if s.noteChange(d, ipv6) {
		s.Read()
	}
}

// noteChange notes it, and reports whether flows that were there before are to be found.
func (s *Server) noteChange(d *lb.Delta, ipv6 bool) (some bool) {
	h := &s.following.hearing
	h.mu.Lock()
	defer h.mu.Unlock()
	if d.Whole {
		for id := range h.services {
			if id.IPv6 == ipv6 {
				h.remove(id)
			}
		}
	}
	for _, x := range d.Removed {
		h.remove(x.ID)
	}
	for _, x := range d.Added {
		h.set(x.ID, s.needsEvents(x))
	}
	defaults := &s.Balancer.Defaults
	for _, x := range d.Changed {
		h.set(x.New.ID, s.needsEvents(x.New))
		some = some || !x.Old.InForce(defaults).CountsInFlight() && x.New.InForce(defaults).CountsInFlight()
	}
	s.settle()
	return h.events != nil && (some || len(d.Added) > 0) // else the start reads
}

// needsEvents reports whether events have to say what becomes of the flows of a Service.
func (s *Server) needsEvents(x *lb.Service) bool {
	p := x.InForce(&s.Balancer.Defaults)
	logs, _ := p.Logs()
	return logs || p.CountsInFlight() || p.RetryRefused == lb.On || x.Protocol == lb.SCTP ||
		x.Protocol == lb.UDP && p.UDPResponses > 0
}

// has reports whether a Service port is on the path.
func (s *Server) has(id lb.ID) bool {
	h := &s.following.hearing
	h.mu.Lock()
	defer h.mu.Unlock()
	_, there := h.services[id]
	return there
}

// suspect has events be heard for a while, since an endpoint may have failed.
func (s *Server) suspect() {
	h := &s.following.hearing
	h.mu.Lock()
	defer h.mu.Unlock()
	h.until = s.Now() + hearsFor
	_ = h.hear(true) // or else when the next one is suspected
}

// unsuspect ends that in time.
func (s *Server) unsuspect() {
	s.following.hearing.mu.Lock()
	defer s.following.hearing.mu.Unlock()
	s.settle()
}

// settle has events be heard if anything needs them, and else not. The caller holds the lock.
func (s *Server) settle() {
	h := &s.following.hearing
	needs := !s.Ask.Events || s.Ask.Follow == 0 || h.need > 0 || s.Now() < h.until
	_ = h.hear(needs) // an error was Expect's, if it is of use
}

// hear begins to hear events, or ends. The caller holds h.mu.
func (h *hearing) hear(on bool) error {
	if h.events == nil || h.on.Load() == on {
		return nil
	}
	err := h.events.Hear(on)
	if err == nil {
		h.on.Store(on)
	}
	return err
}
