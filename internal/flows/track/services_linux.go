package track

import (
	"maps"
	"slices"
	"sync"

	"github.com/sluice-lb/sluice/lb"
)

// services are the Service ports on the path.
type services struct {
	mu  sync.Mutex
	all map[lb.ID]struct{}
}

// Changed says what a family has on the path when the engine has synchronized. Flows that were there before are found
// where Services have come, and where it begins to matter what is in flight.
func (t *Tracker) Changed(d *lb.Delta, ipv6 bool) {
	t.services.change(d, ipv6)
	defaults := &t.Balancer.Defaults
	if len(d.Added) > 0 || slices.ContainsFunc(d.Changed, func(c lb.Change) bool {
		return !c.Old.InForce(defaults).CountsInFlight() && c.New.InForce(defaults).CountsInFlight()
	}) {
		t.RequestReading()
	}
}

func (on *services) change(d *lb.Delta, ipv6 bool) {
	on.mu.Lock()
	defer on.mu.Unlock()
	if on.all == nil {
		on.all = make(map[lb.ID]struct{})
	}
	if d.Whole {
		maps.DeleteFunc(on.all, func(id lb.ID, _ struct{}) bool { return id.IPv6 == ipv6 })
	}
	for _, x := range d.Removed {
		delete(on.all, x.ID)
	}
	for _, x := range d.Added {
		on.all[x.ID] = struct{}{}
	}
}

func (on *services) has(id lb.ID) bool {
	on.mu.Lock()
	defer on.mu.Unlock()
	_, there := on.all[id]
	return there
}
