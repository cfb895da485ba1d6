package tcp

import (
	"errors"
	"sync/atomic"

	"github.com/sluice-lb/sluice/lb"
)

// counters are written by one loop and read by anyone. The padding keeps two
// loops' counters off one cache line.
type counters struct {
	active, dialling                                    atomic.Int64
	accepted, noService, noBackend, noLocal, notAllowed atomic.Uint64
	dials, dialRefused, dialTimedOut                    atomic.Uint64
	dialGaveUp, established                             atomic.Uint64
	clientResets, backendResets                         atomic.Uint64
	bytesIn, bytesOut                                   atomic.Uint64
	pausedDescriptors, pausedDials                      atomic.Uint64
	acceptErrors, shortages                             atomic.Uint64
	_                                                   [64]byte
}

// reason returns the counter for connections that err keeps from a backend.
func (c *counters) reason(err error) *atomic.Uint64 {
	switch {
	case errors.Is(err, lb.ErrNoBackend):
		return &c.noBackend
	case errors.Is(err, lb.ErrNoLocalBackend):
		return &c.noLocal
	case errors.Is(err, lb.ErrNotAllowed):
		return &c.notAllowed
	}
	return &c.noService
}

// each passes every counter, but not the gauges, to visit, with its place in s.
func (c *counters) each(s *Stats, visit func(c *atomic.Uint64, in *uint64)) {
	visit(&c.accepted, &s.Accepted)
	visit(&c.noService, &s.NoService)
	visit(&c.noBackend, &s.NoBackend)
	visit(&c.noLocal, &s.NoLocal)
	visit(&c.notAllowed, &s.NotAllowed)
	visit(&c.dials, &s.Dials)
	visit(&c.dialRefused, &s.DialRefused)
	visit(&c.dialTimedOut, &s.DialTimedOut)
	visit(&c.dialGaveUp, &s.DialGaveUp)
	visit(&c.established, &s.Established)
	visit(&c.clientResets, &s.ClientResets)
	visit(&c.backendResets, &s.BackendResets)
	visit(&c.bytesIn, &s.BytesIn)
	visit(&c.bytesOut, &s.BytesOut)
	visit(&c.pausedDescriptors, &s.PausedDescriptors)
	visit(&c.pausedDials, &s.PausedDials)
	visit(&c.acceptErrors, &s.AcceptErrors)
	visit(&c.shortages, &s.Shortages)
}

// addTo adds the counters and gauges to s.
func (c *counters) addTo(s *Stats) {
	s.Active += c.active.Load()
	s.Dialling += c.dialling.Load()
	c.each(s, func(c *atomic.Uint64, in *uint64) { *in += c.Load() })
}

func (c *counters) snapshot() (s Stats) {
	c.addTo(&s)
	return s
}
