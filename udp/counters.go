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

func (c *counters) snapshot() Stats {
	return Stats{
		Active:        c.active.Load(),
		Created:       c.created.Load(),
		Expired:       c.expired.Load(),
		Evicted:       c.evicted.Load(),
		Moved:         c.moved.Load(),
		Refused:       c.refused.Load(),
		DatagramsIn:   c.datagramsIn.Load(),
		BytesIn:       c.bytesIn.Load(),
		DatagramsOut:  c.datagramsOut.Load(),
		BytesOut:      c.bytesOut.Load(),
		Resent:        c.resent.Load(),
		NoService:     c.noService.Load(),
		NoBackend:     c.noBackend.Load(),
		NoLocal:       c.noLocal.Load(),
		NotAllowed:    c.notAllowed.Load(),
		NoDescriptor:  c.noDescriptor.Load(),
		Unreachable:   c.unreachable.Load(),
		Draining:      c.draining.Load(),
		Malformed:     c.malformed.Load(),
		Busy:          c.busy.Load(),
		TooLong:       c.tooLong.Load(),
		SendErrors:    c.sendErrors.Load(),
		ReceiveErrors: c.receiveErrors.Load(),
	}
}

func (s *Stats) add(o Stats) {
	s.Active += o.Active
	s.Created += o.Created
	s.Expired += o.Expired
	s.Evicted += o.Evicted
	s.Moved += o.Moved
	s.Refused += o.Refused
	s.DatagramsIn += o.DatagramsIn
	s.BytesIn += o.BytesIn
	s.DatagramsOut += o.DatagramsOut
	s.BytesOut += o.BytesOut
	s.Resent += o.Resent
	s.NoService += o.NoService
	s.NoBackend += o.NoBackend
	s.NoLocal += o.NoLocal
	s.NotAllowed += o.NotAllowed
	s.NoDescriptor += o.NoDescriptor
	s.Unreachable += o.Unreachable
	s.Draining += o.Draining
	s.Malformed += o.Malformed
	s.Busy += o.Busy
	s.TooLong += o.TooLong
	s.SendErrors += o.SendErrors
	s.ReceiveErrors += o.ReceiveErrors
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
