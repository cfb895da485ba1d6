package balancer

import (
	"math"

	"github.com/sluice-lb/sluice/lb"
)

// Endpoints that an operator has drained, and the deadlines of their connections.

// Drain has the deadlines of d count from now on. Which backends are drained is for the table to say.
func (b *Balancer) Drain(d *lb.Drains) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drains.Store(d)
	if d.Next(math.MinInt64) < math.MaxInt64 {
		for _, f := range b.watchers {
			f()
		}
	}
}

// Drains returns what Drain was called with last.
func (b *Balancer) Drains() *lb.Drains { return b.drains.Load() }

// drainedUntil returns when connections of a backend are reset since an operator has drained it.
func (b *Balancer) drainedUntil(k *backend) int64 {
	return b.drains.Load().Until(&k.service.id, k.addr)
}
