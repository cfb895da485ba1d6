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

func (c *counters) snapshot() Stats {
	return Stats{
		Active:            c.active.Load(),
		Dialling:          c.dialling.Load(),
		Accepted:          c.accepted.Load(),
		NoService:         c.noService.Load(),
		NoBackend:         c.noBackend.Load(),
		NoLocal:           c.noLocal.Load(),
		NotAllowed:        c.notAllowed.Load(),
		Dials:             c.dials.Load(),
		DialRefused:       c.dialRefused.Load(),
		DialTimedOut:      c.dialTimedOut.Load(),
		DialGaveUp:        c.dialGaveUp.Load(),
		Established:       c.established.Load(),
		ClientResets:      c.clientResets.Load(),
		BackendResets:     c.backendResets.Load(),
		BytesIn:           c.bytesIn.Load(),
		BytesOut:          c.bytesOut.Load(),
		PausedDescriptors: c.pausedDescriptors.Load(),
		PausedDials:       c.pausedDials.Load(),
		AcceptErrors:      c.acceptErrors.Load(),
		Shortages:         c.shortages.Load(),
	}
}
