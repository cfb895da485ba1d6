package tcp

// restore adds what was counted elsewhere, without the gauges.
func (c *counters) restore(from Stats) {
	c.accepted.Add(from.Accepted)
	c.noService.Add(from.NoService)
	c.noBackend.Add(from.NoBackend)
	c.noLocal.Add(from.NoLocal)
	c.notAllowed.Add(from.NotAllowed)
	c.dials.Add(from.Dials)
	c.dialRefused.Add(from.DialRefused)
	c.dialTimedOut.Add(from.DialTimedOut)
	c.dialGaveUp.Add(from.DialGaveUp)
	c.established.Add(from.Established)
	c.clientResets.Add(from.ClientResets)
	c.backendResets.Add(from.BackendResets)
	c.bytesIn.Add(from.BytesIn)
	c.bytesOut.Add(from.BytesOut)
	c.pausedDescriptors.Add(from.PausedDescriptors)
	c.pausedDials.Add(from.PausedDials)
	c.acceptErrors.Add(from.AcceptErrors)
	c.shortages.Add(from.Shortages)
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
	s.ClientResets += o.ClientResets
	s.BackendResets += o.BackendResets
	s.BytesIn += o.BytesIn
	s.BytesOut += o.BytesOut
	s.PausedDescriptors += o.PausedDescriptors
	s.PausedDials += o.PausedDials
	s.AcceptErrors += o.AcceptErrors
	s.Shortages += o.Shortages
}
