package balancer

import "github.com/sluice-lb/sluice/lb"

// View is a service port of the current table with what is counted of it, at one moment.
type View struct {
	Service  *lb.Service // not to be written to
	Policies lb.Policies // that hold
	Stats    Stats       // Stats.Backends begins with those of Service.Backends
	Why      []string    // why each of Service.Backends takes connections by policy Cluster, or does not, for people
}

// View returns what there is of one service port; false: the current table does not have it. It waits for Update, and
// no Pick waits for it.
func (cs Counters) View(id lb.ID) (View, bool) {
	cs.b.mu.Lock()
	defer cs.b.mu.Unlock()
	snap := cs.b.load()
	slot, ok := snap.table.SlotOf(&id)
	if !ok {
		return View{}, false
	}
	spec, s := snap.table.In(slot), snap.service(slot)
	v := View{Service: spec, Policies: *s.state.policies.Load(), Stats: s.stats(cs.b.updates),
		Why: make([]string, len(spec.Backends))}
	sel := lb.Select(spec.Backends)
	for i := range spec.Backends {
		v.Why[i] = sel.Why(lb.ClusterSet, &spec.Backends[i])
	}
	return v, true
}

// Sum is what is counted of a service port in all, and how its backends do.
type Sum struct {
	Service *lb.Service // not to be written to
	Counts
	Refused  uint64  // for whatever reason
	Ends     lb.Ends // connections that did not end as they should
	InFlight uint64
	Waiting  uint64 // clients that wait for an endpoint, or for room at one
	Eligible int    // of Service.Backends, those that get new connections by policy Cluster
	Failing  int    // of these and the others, those that are ejected or whose check fails
}

// Sums calls visit with what there is of each service port of the current table, each at another moment, in the
// table's order. The Sum is visit's only until it returns. It allocates next to nothing: unlike Stats it may be asked
// of many services every few seconds.
func (cs Counters) Sums(visit func(*Sum)) {
	table := cs.b.Table()
	var sum Sum
	for i := range table.Len() {
		if cs.sum(&table.At(i).ID, &sum) {
			visit(&sum)
		}
	}
}

// sum says what there is of a service port; false: it has gone meanwhile.
func (cs Counters) sum(id *lb.ID, sum *Sum) bool {
	cs.b.mu.Lock()
	defer cs.b.mu.Unlock()
	snap := cs.b.load()
	slot, ok := snap.table.SlotOf(id)
	if !ok {
		return false
	}
	s := snap.service(slot)
	*sum = Sum{Service: snap.table.In(slot), Counts: s.state.gone(), Refused: s.state.refusals().sum() +
		s.state.overShare.Load(), Waiting: s.state.waiting()}
	s.state.readEnds(&sum.Ends)
	for _, k := range s.backends {
		sum.count(k)
		if k.is(conditionOf(lb.ClusterSet)) {
			sum.Eligible++
		}
		if h := k.health.Load(); h != nil && (h.ejected || h.failing) {
			sum.Failing++
		}
	}
	for _, k := range s.state.leaving() {
		sum.count(k)
	}
	return true
}

func (s *Sum) count(k *backend) {
	s.Counts.add(k.counts())
	s.InFlight += k.inFlight()
}

// Totals returns the sums of all service ports of the current table, each at another moment: what is counted, and the
// picks that are not done.
func (cs Counters) Totals() (sum Counts, inFlight uint64) {
	cs.Sums(func(s *Sum) {
		sum.add(s.Counts)
		inFlight += s.InFlight
	})
	return sum, inFlight
}
