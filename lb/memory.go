package lb

import (
	"math"
	"net/netip"
)

// Memory is what one service port keeps from table to table, affinity excepted: for
// another Balancer, of the process that takes over from this one. Balancers with the
// same Seed and the same Table that have the same Memory choose alike.
type Memory struct {
	ID ID

	// First and Retry are the round robin positions of first attempts and of retries, of
	// policy Cluster and of policy Local.
	First, Retry [2]uint64

	// What backends that have left for good had counted.
	Picks, Failures, BytesIn, BytesOut uint64

	NoBackend, NoLocalBackend, NotAllowed uint64 // as in Stats

	// Backends are those of the table, in its order, and then those that have left it
	// and still have picks in flight.
	Backends []BackendMemory
}

// BackendMemory is what a service port keeps of one backend. Picks in flight are
// not in it: the process that takes over a connection resumes its Choice.
type BackendMemory struct {
	Addr              netip.AddrPort
	Picks, Failures   uint64
	BytesIn, BytesOut uint64
}

// Client is what is remembered of one client of a service with affinity.
type Client struct {
	Addr     netip.Addr
	Backend  netip.AddrPort
	LastUsed int64 // on the clock of Flow.Now
}

// Memories returns what outlives tables, of all services in the order of the current
// table. It reads counters while they change; a Balancer without Picks meanwhile
// gives an exact answer.
func (b *Balancer) Memories() []Memory {
	b.mu.Lock()
	defer b.mu.Unlock()
	snap := b.load()
	all := make([]Memory, snap.table.Len())
	for i, slot := range snap.table.slots {
		all[i] = snap.services[slot].state.memory(snap.services[slot].backends)
	}
	return all
}

func (s *state) memory(current []*backend) Memory {
	m := Memory{
		ID:    s.id,
		Picks: s.picks, Failures: s.failures, BytesIn: s.bytesIn, BytesOut: s.bytesOut,
		NoBackend: s.noBackend.Load(), NoLocalBackend: s.noLocalBackend.Load(), NotAllowed: s.notAllowed.Load(),
		Backends: make([]BackendMemory, 0, len(current)+len(s.leaving)),
	}
	for in := range s.positions {
		m.First[in], m.Retry[in] = s.positions[in].first.Load(), s.positions[in].retry.Load()
	}
	for _, backends := range [][]*backend{current, s.leaving} {
		for _, k := range backends {
			m.Backends = append(m.Backends, BackendMemory{
				k.addr, k.picks.Load(), k.failures.Load(), k.bytesIn.Load(), k.bytesOut.Load()})
		}
	}
	return m
}

// Remember makes the services of the current table go on where another Balancer has
// stopped, instead of where they are. What is about services and backends that the
// table does not have is left out, except that backends which had left there leave
// here too. Picks in flight stay in flight. It is for the start, before the first
// Pick.
func (b *Balancer) Remember(all []Memory) {
	b.mu.Lock()
	defer b.mu.Unlock()
	snap := b.load()
	for i := range all {
		m := &all[i]
		at, ok := snap.table.index.slot(m.ID)
		if !ok {
			continue
		}
		s := snap.services[at].state
		for in := range s.positions {
			s.positions[in].first.Store(m.First[in])
			s.positions[in].retry.Store(m.Retry[in])
		}
		s.picks, s.failures, s.bytesIn, s.bytesOut = m.Picks, m.Failures, m.BytesIn, m.BytesOut
		s.noBackend.Store(m.NoBackend)
		s.noLocalBackend.Store(m.NoLocalBackend)
		s.notAllowed.Store(m.NotAllowed)
		for j, known := range m.Backends {
			var k *backend
			if current := snap.services[at].backends; j < len(current) && current[j].addr == known.Addr {
				k = current[j] // as always, if the tables are alike
			} else {
				k = s.known(snap.services[at].backends, known.Addr)
			}
			inFlight := k.inFlight()
			k.picks.Store(known.Picks)
			k.done.Store(known.Picks - inFlight)
			k.failures.Store(known.Failures)
			k.bytesIn.Store(known.BytesIn)
			k.bytesOut.Store(known.BytesOut)
		}
	}
}

// known returns the backend at addr, which is leaving if it is not a current one. The
// caller holds Balancer.mu.
func (s *state) known(current []*backend, addr netip.AddrPort) *backend {
	for _, backends := range [][]*backend{current, s.leaving} {
		for _, k := range backends {
			if k.addr == addr {
				return k
			}
		}
	}
	k := s.newBackend(addr)
	s.leaving = append(s.leaving, k)
	return k
}

// Clients passes to visit what is remembered of the clients that came at time from or
// later, one service with affinity at a time and the longest ago first. Since clocks of
// different goroutines differ, from is a little earlier than needed. The slice is
// visit's only until it returns.
func (b *Balancer) Clients(from int64, visit func(ID, []Client)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	snap := b.load()
	var clients []Client
	for _, slot := range snap.table.slots {
		s := snap.services[slot]
		if s.affinityTimeout == 0 {
			continue
		}
		if clients = s.state.clients(clients[:0], from); len(clients) > 0 {
			visit(s.state.id, clients)
		}
	}
}

// ServiceClients returns what is remembered of the clients of one service, the longest
// ago first: none without affinity.
func (b *Balancer) ServiceClients(id ID) []Client {
	b.mu.Lock()
	defer b.mu.Unlock()
	snap := b.load()
	at, ok := snap.table.index.slot(id)
	if !ok || snap.services[at].affinityTimeout == 0 {
		return nil
	}
	return snap.services[at].state.clients(nil, math.MinInt64)
}

// clients appends those that came at time from or later.
func (s *state) clients(to []Client, from int64) []Client {
	s.affinity.Since(from, func(addr netip.Addr, k *backend, lastUsed int64) {
		to = append(to, Client{addr, k.addr, lastUsed})
	})
	return to
}

// RememberClients adds what another Balancer has remembered of the clients of a
// service, in the order of Clients. A client whose backend takes no new connections in
// the current table is left out.
func (b *Balancer) RememberClients(id ID, clients []Client) {
	b.mu.Lock()
	defer b.mu.Unlock()
	snap := b.load()
	at, ok := snap.table.index.slot(id)
	if !ok || snap.services[at].affinityTimeout == 0 {
		return
	}
	s := snap.services[at].state
	backends := make(map[netip.AddrPort]*backend, len(snap.services[at].backends))
	for _, k := range snap.services[at].backends {
		backends[k.addr] = k
	}
	for _, c := range clients {
		if k := backends[c.Backend]; k != nil && k.is(eligible) {
			s.affinity.Put(c.Addr, k, c.LastUsed)
		}
	}
}

// Resume returns a choice that another Balancer has made, for the connection that is
// taken over from it. It counts as in flight until Done, and not as a Pick. If the
// table does not have the backend, the choice is that of a backend which has left.
func (b *Balancer) Resume(id ID, addr netip.AddrPort) Choice {
	b.mu.Lock()
	defer b.mu.Unlock()
	k := b.find(id, addr)
	k.done.Add(^uint64(0)) // one less: the Pick is among those of Memory
	return Choice{k}
}

// ResumeTried returns the Tried of a connection that is taken over, which has failed
// at these backends of the service.
func (b *Balancer) ResumeTried(id ID, addrs []netip.AddrPort) Tried {
	b.mu.Lock()
	defer b.mu.Unlock()
	var t Tried
	for _, addr := range addrs {
		t.Add(Choice{b.find(id, addr)})
	}
	return t
}

// find returns a backend by its name, a new one without a place in any table if need
// be. The caller holds b.mu.
func (b *Balancer) find(id ID, addr netip.AddrPort) *backend {
	snap := b.load()
	if at, ok := snap.table.index.slot(id); ok {
		return snap.services[at].state.known(snap.services[at].backends, addr)
	}
	return newState(id, b.Seed).newBackend(addr)
}

// Backends returns the addresses of the backends that were tried, the longest ago
// first.
func (t *Tried) Backends() []netip.AddrPort {
	var out []netip.AddrPort
	for i := range uint8(maxTried) {
		if k := t.backends[(t.next+i)%maxTried]; k != nil {
			out = append(out, k.addr)
		}
	}
	return out
}
