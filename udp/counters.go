package udp

import (
	"errors"
	"sync/atomic"

	"github.com/sluice-lb/sluice/lb"
)

// counters are written by one loop and read by anyone. The padding keeps two
// loops' counters off one cache line.
type counters struct {
	_                                  [64]byte
	active                             atomic.Int64
	created, expired, evicted          atomic.Uint64
	moved, refused, resent             atomic.Uint64
	datagramsIn, bytesIn               atomic.Uint64
	datagramsOut, bytesOut             atomic.Uint64
	noService, noBackend, noDescriptor atomic.Uint64
	noLocal, notAllowed                atomic.Uint64
	unreachable, draining, malformed   atomic.Uint64
	busy, tooLong                      atomic.Uint64
	sendErrors, receiveErrors          atomic.Uint64
	_                                  [64]byte
}

// each passes every counter, but not the gauge, to visit, with its place in s.
func (c *counters) each(s *Stats, visit func(c *atomic.Uint64, in *uint64)) {
	visit(&c.created, &s.Created)
	visit(&c.expired, &s.Expired)
	visit(&c.evicted, &s.Evicted)
	visit(&c.moved, &s.Moved)
	visit(&c.refused, &s.Refused)
	visit(&c.datagramsIn, &s.DatagramsIn)
	visit(&c.bytesIn, &s.BytesIn)
	visit(&c.datagramsOut, &s.DatagramsOut)
	visit(&c.bytesOut, &s.BytesOut)
	visit(&c.resent, &s.Resent)
	visit(&c.noService, &s.NoService)
	visit(&c.noBackend, &s.NoBackend)
	visit(&c.noLocal, &s.NoLocal)
	visit(&c.notAllowed, &s.NotAllowed)
	visit(&c.noDescriptor, &s.NoDescriptor)
	visit(&c.unreachable, &s.Unreachable)
	visit(&c.draining, &s.Draining)
	visit(&c.malformed, &s.Malformed)
	visit(&c.busy, &s.Busy)
	visit(&c.tooLong, &s.TooLong)
	visit(&c.sendErrors, &s.SendErrors)
	visit(&c.receiveErrors, &s.ReceiveErrors)
}

// addTo adds the counters and gauges to s.
func (c *counters) addTo(s *Stats) {
	s.Active += c.active.Load()
	c.each(s, func(c *atomic.Uint64, in *uint64) { *in += c.Load() })
}

func (c *counters) snapshot() (s Stats) {
	c.addTo(&s)
	return s
}

// reason returns the counter for datagrams that err keeps from a backend.
func (c *counters) reason(err error) *atomic.Uint64 {
	switch {
	case errors.Is(err, lb.ErrNoService):
		return &c.noService
	case errors.Is(err, lb.ErrNoBackend):
		return &c.noBackend
	case errors.Is(err, lb.ErrNoLocalBackend):
		return &c.noLocal
	case errors.Is(err, lb.ErrNotAllowed):
		return &c.notAllowed
	case errors.Is(err, errTried):
		return &c.unreachable
	}
	return &c.noDescriptor
}
