package sctp

import (
	"errors"
	"sync/atomic"

	"github.com/sluice-lb/sluice/lb"
)

// counters are written by one loop and read by anyone. The padding keeps two
// loops' counters off one cache line.
type counters struct {
	_                                                [64]byte
	active, dialling                                 atomic.Int64
	accepted, noService, noBackend, noLocal          atomic.Uint64
	notAllowed, dials, dialRefused, dialTimedOut     atomic.Uint64
	dialGaveUp, established, completed, clientAborts atomic.Uint64
	backendAborts, expired, evicted, messagesIn      atomic.Uint64
	bytesIn, messagesOut, bytesOut, packetsIn        atomic.Uint64
	packetsOut, badChecksum, malformed, bundled      atomic.Uint64
	badTag, unexpected, stray, asconf                atomic.Uint64
	draining, full, busy, pausedDescriptors          atomic.Uint64
	pausedDials, acceptErrors, shortages, sendErrors atomic.Uint64
	receiveErrors                                    atomic.Uint64
	tooLong                                          atomic.Uint64
	_                                                [64]byte
}

// fault returns the counter for packets with this fault.
func (c *counters) fault(f fault) *atomic.Uint64 {
	switch f {
	case badChecksum:
		return &c.badChecksum
	case bundled:
		return &c.bundled
	}
	return &c.malformed
}

// reason returns the counter for associations that err keeps from a backend.
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
	visit(&c.completed, &s.Completed)
	visit(&c.clientAborts, &s.ClientAborts)
	visit(&c.backendAborts, &s.BackendAborts)
	visit(&c.expired, &s.Expired)
	visit(&c.evicted, &s.Evicted)
	visit(&c.messagesIn, &s.MessagesIn)
	visit(&c.bytesIn, &s.BytesIn)
	visit(&c.messagesOut, &s.MessagesOut)
	visit(&c.bytesOut, &s.BytesOut)
	visit(&c.packetsIn, &s.PacketsIn)
	visit(&c.packetsOut, &s.PacketsOut)
	visit(&c.badChecksum, &s.BadChecksum)
	visit(&c.malformed, &s.Malformed)
	visit(&c.bundled, &s.Bundled)
	visit(&c.badTag, &s.BadTag)
	visit(&c.unexpected, &s.Unexpected)
	visit(&c.stray, &s.Stray)
	visit(&c.asconf, &s.ASCONF)
	visit(&c.draining, &s.Draining)
	visit(&c.full, &s.Full)
	visit(&c.busy, &s.Busy)
	visit(&c.tooLong, &s.TooLong)
	visit(&c.pausedDescriptors, &s.PausedDescriptors)
	visit(&c.pausedDials, &s.PausedDials)
	visit(&c.acceptErrors, &s.AcceptErrors)
	visit(&c.shortages, &s.Shortages)
	visit(&c.sendErrors, &s.SendErrors)
	visit(&c.receiveErrors, &s.ReceiveErrors)
}

// addTo adds the counters and gauges to s.
func (c *counters) addTo(s *Stats) {
	s.Active += c.active.Load()
	s.Dialling += c.dialling.Load()
	c.each(s, func(c *atomic.Uint64, in *uint64) { *in += c.Load() })
}

// restore adds what was counted elsewhere, without the gauges.
func (c *counters) restore(from Stats) {
	c.each(&from, func(c *atomic.Uint64, in *uint64) { c.Add(*in) })
}
