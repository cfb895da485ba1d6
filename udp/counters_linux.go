package udp

import "sync/atomic"

// restore adds what was counted elsewhere, without the gauge.
func (c *counters) restore(from Stats) {
	c.each(&from, func(c *atomic.Uint64, in *uint64) { c.Add(*in) })
}
