package balancer

import (
	"cmp"
	"math"

	"github.com/sluice-lb/sluice/lb"
)

// What happens to connections whose backend leaves its service: they stay while it is in the service and ready,
// serving, or not terminating (SIG Network, kubernetes#108523). After that they stay until they end, or for the time of
// Policies.OnEndpointRemoved. Time begins when the first of them is visited, since tables have none.

// drainGrace is how long a backend has to be gone before its connections are reset: one that moves from one
// EndpointSlice to another is in neither for a moment. In ns. It is half of that while others of its service are ready.
const drainGrace = int64(1e9)

// Leaves returns when c is to be reset, since its backend has left or an operator has drained it, on the clock of now:
// math.MaxInt64 for not at all. A table without any backend resets nothing: an API server lists nothing after it was
// restored.
func (c Choice) Leaves(now int64) int64 {
	if c.backend == nil {
		return math.MaxInt64
	}
	return min(c.hasLeft(now), c.backend.service.balancer.drainedUntil(c.backend))
}

// hasLeft is Leaves for a backend that has left.
func (c Choice) hasLeft(now int64) int64 {
	k := c.backend
	after := c.Policies().OnEndpointRemoved
	if after <= 0 || k.is(stays) {
		return math.MaxInt64
	}
	b := k.service.balancer
	snap := b.load()
	if snap.backends == 0 {
		return math.MaxInt64
	}
	if k.left.Load() == 0 {
		k.left.CompareAndSwap(0, max(now, 1))
	}
	grace := drainGrace
	if slot, ok := snap.table.SlotOf(&k.service.id); ok && len(snap.service(slot).rings[lb.ClusterSet]) > 0 {
		grace /= 2
	}
	return k.left.Load() + grace + after
}

// Gone returns since when the backend of c has been gone at the latest, 0 if that was not looked at, and how long its
// connections may stay, below 0 until they end, for [Choice.ResumeGone]. Both are 0 if it is not gone.
func (c Choice) Gone() (since, after int64) {
	if c.backend == nil || c.backend.is(stays) {
		return 0, 0
	}
	return c.backend.left.Load(), cmp.Or(c.Policies().OnEndpointRemoved, -1)
}

// ResumeGone notes what another Balancer has known of the backend of c by [Choice.Gone]. A service that the table does
// not have any more keeps its policy.
func (c Choice) ResumeGone(since, after int64) {
	k := c.backend
	if k == nil || after == 0 || k.is(stays) {
		return
	}
	if since != 0 {
		k.left.CompareAndSwap(0, since)
	}
	b := k.service.balancer
	if _, ok := b.load().table.SlotOf(&k.service.id); !ok {
		p := *k.service.policies.Load()
		p.OnEndpointRemoved = after
		k.service.policies.Store(&p)
	}
}

// OnWatch has f called by Update, in its goroutine, when connections have to be looked at from now on: there are other
// policies for some, or a backend has left some that are not to stay. f must neither block nor call the Balancer.
func (b *Balancer) OnWatch(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.watchers = append(b.watchers, f)
}

// watch calls them if the change of services requires it. The caller holds Balancer.mu.
func (b *Balancer) watch(changed [][2]*service, dropped []*service) {
	if len(b.watchers) == 0 {
		return
	}
	needed := false
	for _, s := range dropped {
		needed = needed || s.state.policies.Load().OnEndpointRemoved > 0
	}
	for _, c := range changed {
		p := c[1].state.policies.Load()
		needed = needed || p.Watched() || p.OnEndpointRemoved > 0
	}
	if needed {
		for _, f := range b.watchers {
			f()
		}
	}
}
