package tcp

import "sync/atomic"

// counters are written by one loop and read by anyone. The padding keeps two
// loops' counters off one cache line.
type counters struct {
	active, dialling                 atomic.Int64
	accepted, noService, noBackend   atomic.Uint64
	dials, dialRefused, dialTimedOut atomic.Uint64
	dialGaveUp, established          atomic.Uint64
	clientResets, backendResets      atomic.Uint64
	bytesIn, bytesOut                atomic.Uint64
	pausedDescriptors, pausedDials   atomic.Uint64
	acceptErrors, shortages          atomic.Uint64
	_                                [64]byte
}

func (c *counters) snapshot() Stats {
	return Stats{
		Active:            c.active.Load(),
		Dialling:          c.dialling.Load(),
		Accepted:          c.accepted.Load(),
		NoService:         c.noService.Load(),
		NoBackend:         c.noBackend.Load(),
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

func (s *Stats) add(o Stats) {
	s.Active += o.Active
	s.Dialling += o.Dialling
	s.Accepted += o.Accepted
	s.NoService += o.NoService
	s.NoBackend += o.NoBackend
	s.Dials += o.Dials
	s.DialRefused += o.DialRefused
	s.DialTimedOut += o.DialTimedOut
	s.DialGaveUp += o.DialGaveUp
	s.Established += o.Established
	s.ClientResets += o.ClientResets
	s.BackendResets += o.BackendResets
	s.BytesIn += o.BytesIn
	s.BytesOut += o.BytesOut
	s.PausedDescriptors += o.PausedDescriptors
	s.PausedDials += o.PausedDials
	s.AcceptErrors += o.AcceptErrors
	s.Shortages += o.Shortages
}
