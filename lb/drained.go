package lb

import "math"

// Endpoints that an operator has drained, and the deadlines of their connections.

// Drain has the deadlines of d count from now on. Which backends are drained is for the table to say.
func (b *Balancer) Drain(d *Drains) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drains.Store(d)
	if d != nil && d.deadlines {
		for _, f := range b.watchers {
			f()
		}
	}
}

// Drains returns what Drain was called with last.
func (b *Balancer) Drains() *Drains { return b.drains.Load() }

// drainedUntil returns when connections of a backend are reset since an operator has drained it.
func (b *Balancer) drainedUntil(k *backend) int64 {
	if d := b.drains.Load(); d != nil && d.deadlines {
		if drain := d.of(&k.service.id, k.addr); drain != nil {
			return drain.ends()
		}
	}
	return math.MaxInt64
}
