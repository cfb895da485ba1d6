package lb

// View is a service port of the current table with what is counted of it, at one moment.
type View struct {
	Service  *Service // not to be written to
	Policies Policies // that hold
	Stats    Stats    // Stats.Backends begins with those of Service.Backends
	Why      []string // why each of Service.Backends takes connections by policy Cluster, or does not, for people
}

// View returns what there is of one service port; false: the current table does not have it. It waits for Update, and
// no Pick waits for it.
func (b *Balancer) View(id ID) (View, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	snap := b.load()
	slot, ok := snap.table.index.slot(id)
	if !ok {
		return View{}, false
	}
	spec, s := snap.table.at(slot), snap.service(slot)
	v := View{Service: spec, Policies: *s.state.policies.Load(), Stats: s.stats(b.updates),
		Why: make([]string, len(spec.Backends))}
	sel := selectFrom(spec.Backends)
	for i := range spec.Backends {
		v.Why[i] = sel.why(clusterSet, &spec.Backends[i])
	}
	return v, true
}

// Totals returns the sums of all service ports of the current table, each at another moment: what is counted, and the
// picks that are not done.
func (b *Balancer) Totals() (sum Counts, inFlight uint64) {
	table := b.Table()
	for i := range table.Len() {
		b.addTotals(&table.At(i).ID, &sum, &inFlight)
	}
	return sum, inFlight
}

func (b *Balancer) addTotals(id *ID, sum *Counts, inFlight *uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.service(*id)
	if s == nil { // it has gone meanwhile
		return
	}
	sum.add(s.state.gone)
	for _, k := range s.all() {
		sum.add(k.counts())
		*inFlight += k.inFlight()
	}
}

// SamePolicies reports whether s and t request the same, affinity included.
func (s *Service) SamePolicies(t *Service) bool {
	return s.samePolicies(t) && s.AffinityTimeout == t.AffinityTimeout
}
