package balancer

import (
	"math"
	"net/netip"
	"slices"

	"github.com/sluice-lb/sluice/affinity"
	"github.com/sluice-lb/sluice/lb"
)

// Remember makes the services of the current table go on where another Balancer has stopped:
// with the same Seed and Table this one then chooses alike. Services that the table does not
// have are left out; backends which had left there leave here too. Picks in flight are those of
// this Balancer: who takes over a connection resumes its Choice. It is for the start, before the
// first Pick, and may be called again with what came since.
func (ms Memory) Remember(all []Stats) {
	ms.b.mu.Lock()
	defer ms.b.mu.Unlock()
	for i := range all {
		m := &all[i]
		service := ms.b.service(m.ID)
		if service == nil {
			continue
		}
		s := service.state
		s.noBackend.Store(m.NoBackend)
		s.noLocalBackend.Store(m.NoLocalBackend)
		s.notAllowed.Store(m.NotAllowed)
		s.limited.Store(m.Limited)
		s.resumeEnds(m.Ends)
		// Those that were leaving at an earlier call may be among the gone by now.
		if s.past != nil || m.Gone != (Counts{}) {
			s.past = &past{slices.DeleteFunc(s.leaving(), func(k *backend) bool { return k.inFlight() == 0 }), m.Gone}
		}
		by := service.byAddr()
		bad := false
		for i := range m.Backends {
			known := &m.Backends[i]
			k := by(known.Addr)
			if k == nil {
				k = service.known(known.Addr)
			}
			k.counter.Store(k.inFlight()<<inFlightAt | known.Picks)
			k.failures.Store(known.Failures)
			k.bytesIn.Store(known.BytesIn)
			k.bytesOut.Store(known.BytesOut)
			bad = ms.b.Health().resume(k, &known.Health) || bad
		}
		slot, _ := ms.b.load().table.SlotOf(&m.ID)
		if bad {
			ms.b.Health().rebuild(slot, service)
		}
		window := window(ms.b.load().table.In(slot).InForce(&ms.b.Defaults))
		for i := range m.Backends { // now that those are eligible that were
			if k := by(m.Backends[i].Addr); k != nil {
				k.resumePace(&m.Backends[i].Pace, window)
			}
		}
		for in := range s.positions { // of the rings that there are now
			s.positions[in].first.Store(m.First[in])
			s.positions[in].retry.Store(m.Retry[in])
		}
	}
}

// service returns a service of the current table, or nil. The caller holds b.mu.
func (b *Balancer) service(id lb.ID) *service {
	snap := b.load()
	if slot, ok := snap.table.SlotOf(&id); ok {
		return snap.service(slot)
	}
	return nil
}

// known returns the backend at addr, which is leaving if it is not a current one. The
// caller holds Balancer.mu.
func (s *service) known(addr netip.AddrPort) *backend {
	for _, k := range s.all() {
		if k.addr == addr {
			return k
		}
	}
	k := new(backend).init(s.state, addr)
	s.state.leaves(k)
	return k
}

// Clients passes to visit what is remembered of the clients that came at time from or a little
// before, or later, one service with affinity at a time and the longest ago first. The slice is
// visit's only until it returns.
func (ms Memory) Clients(from int64, visit func(lb.ID, []lb.Client)) {
	ms.b.mu.Lock()
	defer ms.b.mu.Unlock()
	snap := ms.b.load()
	var clients []lb.Client
	for _, slot := range snap.table.Slots() {
		s := snap.service(slot)
		if clients = s.clients(clients[:0], from); len(clients) > 0 {
			visit(s.state.id, clients)
		}
	}
}

// ServiceClients returns what is remembered of the clients of one service, the longest
// ago first: none without affinity.
func (ms Memory) ServiceClients(id lb.ID) []lb.Client {
	ms.b.mu.Lock()
	defer ms.b.mu.Unlock()
	if s := ms.b.service(id); s != nil {
		return s.clients(nil, math.MinInt64)
	}
	return nil
}

// clients appends those that came at time from or later: none without affinity.
func (s *service) clients(to []lb.Client, from int64) []lb.Client {
	if s.affinityTimeout > 0 {
		s.state.sticky.Load().Since(from, func(client affinity.Key, k *backend, lastUsed int64) {
			to = append(to, lb.Client{Addr: client.Addr(), Backend: k.addr, LastUsed: lastUsed})
		})
	}
	return to
}

// RememberClients adds what another Balancer has remembered of the clients of a
// service, in the order of Clients. A client whose backend takes no new connections in
// the current table is left out.
func (ms Memory) RememberClients(id lb.ID, clients []lb.Client) {
	ms.b.mu.Lock()
	defer ms.b.mu.Unlock()
	s := ms.b.service(id)
	if s == nil || s.affinityTimeout == 0 {
		return
	}
	backends := s.byAddr()
	for _, c := range clients {
		if k := backends(c.Backend); k != nil && k.is(eligible) {
			s.state.sticky.Load().Put(affinity.KeyOf(c.Addr), k, c.LastUsed)
		}
	}
}

// Resume returns a choice that another Balancer has made. It counts as in flight until Done, and
// not as a Pick. If the table does not have the backend, it has left.
func (ms Memory) Resume(id lb.ID, addr netip.AddrPort) Choice {
	ms.b.mu.Lock()
	defer ms.b.mu.Unlock()
	k := ms.find(id, addr)
	k.counter.Add(oneMore) // the Pick is among those of Memory
	return Choice{k}
}

// ResumeTried returns the Tried of a connection that is taken over, which has failed
// at these backends of the service.
func (ms Memory) ResumeTried(id lb.ID, addrs []netip.AddrPort) Tried {
	ms.b.mu.Lock()
	defer ms.b.mu.Unlock()
	var t Tried
	for _, addr := range addrs {
		t.Add(Choice{ms.find(id, addr)})
	}
	return t
}

// find returns a backend by its name, a new one without a place in any table if need
// be. The caller holds b.mu.
func (ms Memory) find(id lb.ID, addr netip.AddrPort) *backend {
	if s := ms.b.service(id); s != nil {
		return s.known(addr)
	}
	return new(backend).init(newState(id, ms.b), addr)
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
