package balancer

import (
	"hash/maphash"
	"net/netip"
	"sync"

	"github.com/sluice-lb/sluice/affinity"
	"github.com/sluice-lb/sluice/lb"
)

// How many connections a service port and each of its clients may have at the same time, and how often a client may
// open one. What a backend may have, and who waits for it, is the queue's.

// Admission is what a connection has taken of the limits of its service. The zero Admission has taken nothing.
type Admission struct {
	of     *state
	client counting
}

// counting says whether a connection counts for its client.
type counting uint8

const (
	notCounted counting = iota // the service does not limit its clients, or too many are known:
	notLimited
	clientCounted
)

// Admit has a new connection of a client to f count for the limits of its service, until End. It returns the ID of the
// service, which the caller must not change, nil if there is none, or it does not allow the client. The error,
// ErrServiceLimit, ErrClientLimit or ErrClientRate, says why the client is to be refused, which is counted. now is on
// the clock of Flow.Now.
func (qs Queues) Admit(f *lb.Frontend, client netip.Addr, now int64) (*lb.ID, Admission, error) {
	snap := qs.b.load()
	at, ok := snap.table.Find(f)
	if !ok {
		return nil, Admission{}, nil
	}
	if at.Ruled {
		if _, ok := snap.table.Admit(at, f, client); !ok {
			return nil, Admission{}, nil // Pick refuses it, and it is not to take what others may have
		}
	}
	s := snap.service(at.Slot).state
	id := &snap.table.In(at.Slot).ID
	a := Admission{of: s}
	p := s.policies.Load()
	if !s.connect(int64(p.MaxConnections)) {
		s.limited.Add(1)
		return id, Admission{}, ErrServiceLimit
	}
	if c := s.clients.Load(); c != nil && limitsClients(p) && client.IsValid() {
		var err error
		if a.client, err = c.admit(client, p, now); err != nil {
			s.conns.Add(-1)
			s.limited.Add(1)
			return id, Admission{}, err
		}
	}
	return id, a, nil
}

// connect counts a connection, if there are less than limit; 0 or less: there is no limit.
func (s *state) connect(limit int64) bool {
	if limit <= 0 {
		s.conns.Add(1)
		return true
	}
	for {
		n := s.conns.Load()
		if n >= limit {
			return false
		}
		if s.conns.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// Readmit is Admit for a connection that another Balancer has admitted, also beyond the limits. It counts for its
// client only after CountClient.
func (qs Queues) Readmit(id lb.ID) Admission {
	snap := qs.b.load()
	slot, ok := snap.table.SlotOf(&id)
	if !ok {
		return Admission{}
	}
	s := snap.service(slot).state
	s.conns.Add(1)
	return Admission{of: s}
}

// CountClient has a connection of Readmit count for its client, as it did at the other Balancer (CountsClient).
func (a Admission) CountClient(client netip.Addr) Admission {
	if a.of == nil || !client.IsValid() {
		return a
	}
	if c := a.of.clients.Load(); c != nil && limitsClients(a.of.policies.Load()) {
		a.client = c.readmit(client)
	}
	return a
}

// CountsClient reports whether the connection counts for its client: not if it is from before there was a limit.
func (a Admission) CountsClient() bool { return a.client == clientCounted }

// Service returns the ID of the service that a, which is not zero, is of.
func (a Admission) Service() lb.ID { return a.of.id }

// End says that the connection of the client has ended. For the zero Admission it does nothing.
func (a Admission) End(client netip.Addr) {
	if a.of == nil {
		return
	}
	a.of.conns.Add(-1)
	if a.client == clientCounted {
		a.of.clients.Load().end(client)
	}
}

// limitsClients reports whether p limits what one client may do.
func limitsClients(p *lb.Policies) bool {
	return p.MaxClientConnections > 0 || p.MaxClientConnectionRate > 0
}

const (
	// manyClients is how many clients a service port can know at the same time, which takes about 4 MB.
	manyClients = 1 << 16
	// clientParts are for goroutines not to wait for each other.
	clientParts = 16
	// sweepEvery is how often a part that is full is swept at most, in ns.
	sweepEvery = int64(100e6)
)

// clients are those of a service port that limits them. One beyond manyClients, all of which have connections or had
// some within a second, is not limited: it would be refused for what others do.
type clients struct{ parts [clientParts]clientPart }

type clientPart struct {
	mu    sync.Mutex
	by    map[affinity.Key]usage // without pointers, for the collector's sake
	swept int64                  // when it was full last
	_     [40]byte               // a cache line of its own
}

// usage is what is known of one client.
type usage struct {
	conns int32
	// rested is when it may open a second's worth of connections at once again, however many it has opened (the
	// theoretical arrival time of the generic cell rate algorithm, ITU-T I.371).
	rested int64
}

// clientSeed makes it a secret which clients are in one part: who has many addresses could fill that of others.
var clientSeed = maphash.MakeSeed()

// part returns the part that has a client.
func (c *clients) part(key *affinity.Key) *clientPart {
	return &c.parts[maphash.Bytes(clientSeed, key[:])%clientParts]
}

// admit has a connection of a client count, if the client is known or can be, and it is within its limits.
func (c *clients) admit(of netip.Addr, p *lb.Policies, now int64) (counting, error) {
	const second = int64(1e9)
	key := affinity.KeyOf(lb.HostOf(of))
	part := c.part(&key)
	part.mu.Lock()
	defer part.mu.Unlock()
	one, known := part.by[key]
	if p.MaxClientConnections > 0 && one.conns >= p.MaxClientConnections {
		return notCounted, ErrClientLimit
	}
	if p.MaxClientConnectionRate > 0 {
		each := second / int64(p.MaxClientConnectionRate)
		one.rested = max(one.rested, now) + each
		if one.rested-now > second {
			return notCounted, ErrClientRate
		}
	}
	if !known && !part.room(now) {
		return notLimited, nil
	}
	one.conns++
	part.put(key, one)
	return clientCounted, nil
}

func (c *clients) readmit(of netip.Addr) counting {
	key := affinity.KeyOf(lb.HostOf(of))
	part := c.part(&key)
	part.mu.Lock()
	defer part.mu.Unlock()
	one, known := part.by[key]
	if !known && len(part.by) >= manyClients/clientParts {
		return notLimited
	}
	one.conns++
	part.put(key, one)
	return clientCounted
}

func (c *clients) end(of netip.Addr) {
	key := affinity.KeyOf(lb.HostOf(of))
	part := c.part(&key)
	part.mu.Lock()
	defer part.mu.Unlock()
	one := part.by[key]
	if one.conns--; one.conns == 0 && one.rested == 0 {
		delete(part.by, key)
		return
	}
	part.by[key] = one
}

// ClientRate is what a client has used of its rate of connections.
type ClientRate struct {
	Addr netip.Addr
	// Rested is when it has used nothing, on the clock of Flow.Now: at most a second from when it opened a connection.
	Rested int64
}

// ClientRates passes to visit those of the clients that have used some by now, one service at a time. The slice is
// visit's only until it returns.
func (ms Memory) ClientRates(now int64, visit func(lb.ID, []ClientRate)) {
	ms.b.mu.Lock()
	defer ms.b.mu.Unlock()
	snap := ms.b.load()
	var all []ClientRate
	for _, slot := range snap.table.Slots() {
		s := snap.service(slot).state
		c := s.clients.Load()
		if c == nil {
			continue
		}
		if all = c.rates(all[:0], now); len(all) > 0 {
			visit(s.id, all)
		}
	}
}

// RememberClientRates adds what clients of a service have used of their rates at another Balancer.
func (ms Memory) RememberClientRates(id lb.ID, all []ClientRate) {
	ms.b.mu.Lock()
	defer ms.b.mu.Unlock()
	s := ms.b.service(id)
	if s == nil {
		return
	}
	c := s.state.clients.Load()
	if c == nil || !limitsClients(s.state.policies.Load()) {
		return
	}
	for i := range all {
		c.rest(&all[i])
	}
}

func (c *clients) rates(to []ClientRate, now int64) []ClientRate {
	for i := range c.parts {
		part := &c.parts[i]
		part.mu.Lock()
		for key, one := range part.by {
			if one.rested > now {
				to = append(to, ClientRate{key.Addr(), one.rested})
			}
		}
		part.mu.Unlock()
	}
	return to
}

func (c *clients) rest(r *ClientRate) {
	key := affinity.KeyOf(lb.HostOf(r.Addr))
	part := c.part(&key)
	part.mu.Lock()
	defer part.mu.Unlock()
	one, known := part.by[key]
	if known || len(part.by) < manyClients/clientParts {
		one.rested = max(one.rested, r.Rested)
		part.put(key, one)
	}
}

func (c *clients) sweep(now int64) {
	for i := range c.parts {
		part := &c.parts[i]
		part.mu.Lock()
		part.sweep(now)
		part.mu.Unlock()
	}
}

func (p *clientPart) put(key affinity.Key, one usage) {
	if p.by == nil {
		p.by = make(map[affinity.Key]usage)
	}
	p.by[key] = one
}

// room makes room for one client more, and reports whether there is.
func (p *clientPart) room(now int64) bool {
	if len(p.by) >= manyClients/clientParts && now-p.swept >= sweepEvery {
		p.swept = now
		p.sweep(now)
	}
	return len(p.by) < manyClients/clientParts
}

// sweep forgets the clients of which nothing need be known any more.
func (p *clientPart) sweep(now int64) {
	for key, one := range p.by {
		if one.conns == 0 && one.rested <= now {
			delete(p.by, key)
		}
	}
}
