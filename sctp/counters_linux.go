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
		Completed:         c.completed.Load(),
		ClientAborts:      c.clientAborts.Load(),
		BackendAborts:     c.backendAborts.Load(),
		Expired:           c.expired.Load(),
		Evicted:           c.evicted.Load(),
		MessagesIn:        c.messagesIn.Load(),
		BytesIn:           c.bytesIn.Load(),
		MessagesOut:       c.messagesOut.Load(),
		BytesOut:          c.bytesOut.Load(),
		PacketsIn:         c.packetsIn.Load(),
		PacketsOut:        c.packetsOut.Load(),
		BadChecksum:       c.badChecksum.Load(),
		Malformed:         c.malformed.Load(),
		Bundled:           c.bundled.Load(),
		BadTag:            c.badTag.Load(),
		Unexpected:        c.unexpected.Load(),
		Stray:             c.stray.Load(),
		ASCONF:            c.asconf.Load(),
		Draining:          c.draining.Load(),
		Full:              c.full.Load(),
		Busy:              c.busy.Load(),
		TooLong:           c.tooLong.Load(),
		PausedDescriptors: c.pausedDescriptors.Load(),
		PausedDials:       c.pausedDials.Load(),
		AcceptErrors:      c.acceptErrors.Load(),
		Shortages:         c.shortages.Load(),
		SendErrors:        c.sendErrors.Load(),
		ReceiveErrors:     c.receiveErrors.Load(),
	}
}

func (s *Stats) add(o Stats) {
	s.Active += o.Active
	s.Dialling += o.Dialling
	s.Accepted += o.Accepted
	s.NoService += o.NoService
	s.NoBackend += o.NoBackend
	s.NoLocal += o.NoLocal
	s.NotAllowed += o.NotAllowed
	s.Dials += o.Dials
	s.DialRefused += o.DialRefused
	s.DialTimedOut += o.DialTimedOut
	s.DialGaveUp += o.DialGaveUp
	s.Established += o.Established
	s.Completed += o.Completed
	s.ClientAborts += o.ClientAborts
	s.BackendAborts += o.BackendAborts
	s.Expired += o.Expired
	s.Evicted += o.Evicted
	s.MessagesIn += o.MessagesIn
	s.BytesIn += o.BytesIn
	s.MessagesOut += o.MessagesOut
	s.BytesOut += o.BytesOut
	s.PacketsIn += o.PacketsIn
	s.PacketsOut += o.PacketsOut
	s.BadChecksum += o.BadChecksum
	s.Malformed += o.Malformed
	s.Bundled += o.Bundled
	s.BadTag += o.BadTag
	s.Unexpected += o.Unexpected
	s.Stray += o.Stray
	s.ASCONF += o.ASCONF
	s.Draining += o.Draining
	s.Full += o.Full
	s.Busy += o.Busy
	s.TooLong += o.TooLong
	s.PausedDescriptors += o.PausedDescriptors
	s.PausedDials += o.PausedDials
	s.AcceptErrors += o.AcceptErrors
	s.Shortages += o.Shortages
	s.SendErrors += o.SendErrors
	s.ReceiveErrors += o.ReceiveErrors
}
