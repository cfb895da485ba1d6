package udp

// restore adds what was counted elsewhere, without the gauge.
func (c *counters) restore(from Stats) {
	c.created.Add(from.Created)
	c.expired.Add(from.Expired)
	c.evicted.Add(from.Evicted)
	c.moved.Add(from.Moved)
	c.refused.Add(from.Refused)
	c.datagramsIn.Add(from.DatagramsIn)
	c.bytesIn.Add(from.BytesIn)
	c.datagramsOut.Add(from.DatagramsOut)
	c.bytesOut.Add(from.BytesOut)
	c.resent.Add(from.Resent)
	c.noService.Add(from.NoService)
	c.noBackend.Add(from.NoBackend)
	c.noLocal.Add(from.NoLocal)
	c.notAllowed.Add(from.NotAllowed)
	c.noDescriptor.Add(from.NoDescriptor)
	c.unreachable.Add(from.Unreachable)
	c.draining.Add(from.Draining)
	c.malformed.Add(from.Malformed)
	c.busy.Add(from.Busy)
	c.tooLong.Add(from.TooLong)
	c.sendErrors.Add(from.SendErrors)
	c.receiveErrors.Add(from.ReceiveErrors)
}
