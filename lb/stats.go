package lb

import "net/netip"

// Stats counts what happened to one service port since it first appeared in a
// table. Counters of a service never go down while it stays in the table.
type Stats struct {
	ID ID
	// Picks is the number of successful Picks, and Failures of those that were
	// done with an error.
	Picks, Failures uint64
	// BytesIn and BytesOut are what was moved from clients and to them. Of a
	// connection that is open the last 256 KiB may be missing.
	BytesIn, BytesOut uint64
	// NoBackend, NoLocalBackend and NotAllowed are the numbers of Picks that
	// returned ErrNoBackend, ErrNoLocalBackend and ErrNotAllowed.
	NoBackend, NoLocalBackend, NotAllowed uint64
	// InFlight is the number of Picks that are not done, including those at
	// backends that have left the table.
	InFlight uint64
	// AffinityEntries is the number of clients remembered, and AffinityEvicted
	// how many were evicted because there were too many.
	AffinityEntries int
	AffinityEvicted uint64
	// Backends holds those of the table, in its order, and then those that have
	// left it and still have picks in flight.
	Backends []BackendStats
}

// BackendStats counts what happened to one backend since it first appeared in a
// table, with the meanings of Stats.
type BackendStats struct {
	Addr              netip.AddrPort
	Live              bool // flows that are there may stay
	Eligible          bool // new connections may go there by policy Cluster
	EligibleLocal     bool // new connections may go there by policy Local
	Picks, Failures   uint64
	BytesIn, BytesOut uint64
	InFlight          uint64
}

// Stats returns the numbers of all services in the order of the current table.
// It reads counters while they change, and so is exact for each and only nearly
// consistent between them.
func (b *Balancer) Stats() []Stats {
	b.mu.Lock()
	defer b.mu.Unlock()
	snap := b.load()
	all := make([]Stats, snap.table.Len())
	for i, slot := range snap.table.slots {
		all[i] = snap.services[slot].stats(b.updates)
	}
	return all
}

func (s *service) stats(update uint64) Stats {
	s.state.dropDrained(update)
	total := Stats{
		ID:              s.state.id,
		Picks:           s.state.picks,
		Failures:        s.state.failures,
		BytesIn:         s.state.bytesIn,
		BytesOut:        s.state.bytesOut,
		NoBackend:       s.state.noBackend.Load(),
		NoLocalBackend:  s.state.noLocalBackend.Load(),
		NotAllowed:      s.state.notAllowed.Load(),
		AffinityEntries: s.state.affinity.Len(),
		AffinityEvicted: s.state.affinity.Evicted(),
		Backends:        make([]BackendStats, 0, len(s.backends)+len(s.state.leaving)),
	}
	for _, backends := range [][]*backend{s.backends, s.state.leaving} {
		for _, k := range backends {
			one := k.stats()
			total.Picks += one.Picks
			total.Failures += one.Failures
			total.BytesIn += one.BytesIn
			total.BytesOut += one.BytesOut
			total.InFlight += one.InFlight
			total.Backends = append(total.Backends, one)
		}
	}
	return total
}

func (b *backend) stats() BackendStats {
	condition := b.condition.Load()
	return BackendStats{
		Addr:          b.addr,
		Live:          condition&live != 0,
		Eligible:      condition&clusterSet.condition() != 0,
		EligibleLocal: condition&localSet.condition() != 0,
		InFlight:      b.inFlight(),
		Picks:         b.picks.Load(),
		Failures:      b.failures.Load(),
		BytesIn:       b.bytesIn.Load(),
		BytesOut:      b.bytesOut.Load(),
	}
}
