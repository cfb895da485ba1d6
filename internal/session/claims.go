package session

import (
	"net/netip"
	"sync/atomic"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/shares"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

// Room is what is free on one loop: the same on each, since clients spread evenly over the loops.
type Room struct {
	Conns, Dials int64 // connections, and dials, that there may be more
}

// Claims are what the Services and the clients of one loop have of what is there for all. The zero value holds none of
// them to a share. It is for one goroutine.
type Claims struct {
	Refused lb.End // how the connection ends of the last client that Admit has refused

	lb       *balancer.Balancer // knows the limits, and counts the Services that exceed their shares
	services tenants[lb.Name]
	clients  tenants[netip.Addr]
	accounts map[balancer.Admission]*account
	free     []*account

	loop int // whose they are
}

// account is what connections have in common that were admitted alike. It is apart from them, since they are many.
type account struct {
	admission balancer.Admission
	service   *tenant[lb.Name]
	times     *balancer.LoopTimes
	conns     int64
}

// Claim is what one connection has taken of the shares of its Service and its client, and of limits. The zero Claim has
// taken nothing.
type Claim struct {
	account *account // nil: of no Service
	client  *tenant[netip.Addr]
}

// service returns whose share the connection is of; nil: that of no Service.
func (c Claim) service() *tenant[lb.Name] {
	if c.account == nil {
		return nil
	}
	return c.account.service
}

// Times returns what counts the times of the connection; nil: they are not counted.
func (c Claim) Times() *balancer.LoopTimes {
	if c.account == nil {
		return nil
	}
	return c.account.times
}

// Ended counts for the Service how the connection has ended. False: it is of none, as where that does not admit the
// client.
func (c Claim) Ended(end lb.End) bool {
	if c.account != nil {
		c.account.admission.Ended(end)
	}
	return c.account != nil
}

// Client returns the address of the client; the zero Addr: it is not known.
func (c Claim) Client() netip.Addr {
	if c.client == nil {
		return netip.Addr{}
	}
	return c.client.key
}

// NewClaims returns Claims without any connection on a loop, for Services of a Balancer.
func NewClaims(s shares.Shares, b *balancer.Balancer, loop int) Claims {
	return Claims{lb: b, loop: loop, services: tenants[lb.Name]{share: s.Service},
		clients: tenants[netip.Addr]{share: s.Client}}
}

// Admit claims a connection of a client to a frontend, which is to dial next. False, which is counted: the client is to
// be refused, since it or the Service has its share already, or has reached a limit of the Service.
func (cs *Claims) Admit(f lb.Frontend, client netip.Addr, free Room, count *Counters) (c Claim, ok bool) {
	id, admission, err := cs.lb.Queues().Admit(&f, client, eventloop.Now())
	if err != nil {
		cs.Refused = overLimit(count, err)
		return Claim{}, false
	}
	c = cs.open(id, admission, client)
	if over := cs.over(c, free, count); over != nil {
		over.Add(1)
		cs.Refused = lb.OverShare
		cs.End(c)
		return Claim{}, false
	}
	return c, true
}

// over returns the counter of what the client or the Service of c has more than its share of; nil: neither.
func (cs *Claims) over(c Claim, free Room, count *Counters) *atomic.Uint64 {
	if over := cs.clients.over(c.client, free, &count.ClientConns, &count.ClientDials); over != nil {
		return over
	}
	if c.account == nil {
		return nil
	}
	over := cs.services.over(c.account.service, free, &count.ServiceConns, &count.ServiceDials)
	if over != nil {
		cs.lb.ExceedsShare(c.account.admission.Service(), 1)
	}
	return over
}

// Adopt claims a connection that another process has had, whether or not it is within the shares. counted says whether
// it counts for the client's limits (CountsClient). One whose Service has gone is of none.
func (cs *Claims) Adopt(id lb.ID, client netip.Addr, counted bool) (c Claim) {
	admission := cs.lb.Queues().Readmit(id)
	if counted {
		admission = admission.CountClient(client)
	}
	return cs.open(&id, admission, client)
}

// CountsClient reports whether the connection counts for the limits of its client.
func (c Claim) CountsClient() bool { return c.account != nil && c.account.admission.CountsClient() }

// open claims a connection. id is not used without an admission.
func (cs *Claims) open(id *lb.ID, admission balancer.Admission, client netip.Addr) (c Claim) {
	c.client = cs.client(client)
	if admission != (balancer.Admission{}) {
		c.account = cs.account(id, admission)
		c.account.conns++
	}
	c.add(1, 0)
	return c
}

// client returns the tenant of a client address. Addresses of one IPv6 host have one share.
func (cs *Claims) client(addr netip.Addr) *tenant[netip.Addr] {
	t := cs.clients.find(addr)
	if host := lb.HostOf(addr); t.host == nil && host.Is6() && host != addr {
		t.host = cs.clients.find(host)
	}
	return t
}

// account returns that of an admission, which is made if need be.
func (cs *Claims) account(id *lb.ID, admission balancer.Admission) *account {
	if a := cs.accounts[admission]; a != nil {
		return a
	}
	if cs.accounts == nil {
		cs.accounts = make(map[balancer.Admission]*account)
	}
	a := reuse(&cs.free)
	if a == nil {
		a = new(account)
	}
	*a = account{admission: admission, service: cs.services.find(id.Service()),
		times: admission.Times(cs.loop)}
	cs.accounts[admission] = a
	return a
}

// Dial claims a dial.
func (c Claim) Dial() { c.add(0, 1) }

// Dialled gives it back.
func (c Claim) Dialled() { c.add(0, -1) }

func (c Claim) add(conns, dials int64) {
	c.client.add(conns, dials)
	c.service().add(conns, dials)
}

// End gives the connection back.
func (cs *Claims) End(c Claim) {
	c.add(-1, 0)
	if a := c.account; a != nil {
		a.admission.End(c.Client())
		cs.services.leave(a.service)
		if a.conns--; a.conns == 0 {
			delete(cs.accounts, a.admission)
			*a = account{}
			keep(&cs.free, a)
		}
	}
	cs.clients.leave(c.client)
}

// tenants are the Services, or the clients, that have connections.
type tenants[K comparable] struct {
	share shares.Percent
	by    map[K]*tenant[K]
	free  []*tenant[K]
}

// tenant is one of them.
type tenant[K comparable] struct {
	key          K
	conns, dials int64
	host         *tenant[K] // has the same share, and counts what this one has, too; nil: none
	queue        int        // of its dials in the rota, counted from 1; 0: none is ready
}

// add changes what a tenant has. nil has nothing.
func (t *tenant[K]) add(conns, dials int64) {
	if t != nil {
		t.conns += conns
		t.dials += dials
		t.host.add(conns, dials)
	}
}

// find returns the tenant with a key, which is made if need be.
func (ts *tenants[K]) find(key K) *tenant[K] {
	if t := ts.by[key]; t != nil {
		return t
	}
	if ts.by == nil {
		ts.by = make(map[K]*tenant[K])
	}
	t := reuse(&ts.free)
	if t == nil {
		t = new(tenant[K])
	}
	*t = tenant[K]{key: key}
	ts.by[key] = t
	return t
}

// leave forgets a tenant that has nothing. nil is ignored.
func (ts *tenants[K]) leave(t *tenant[K]) {
	if t != nil && t.conns == 0 {
		delete(ts.by, t.key)
		ts.leave(t.host)
		keep(&ts.free, t)
	}
}

// over returns the counter of what t has more than its share of, with one dial more. nil: neither.
func (ts *tenants[K]) over(t *tenant[K], free Room, conns, dials *atomic.Uint64) *atomic.Uint64 {
	if t.host != nil {
		t = t.host
	}
	switch {
	case !ts.share.Allows(t.conns, 0, free.Conns):
		return conns
	case !ts.share.Allows(t.dials, 1, free.Dials):
		return dials
	}
	return nil
}

// maxKept bounds each pool of a loop: connections that come and go make no garbage, whose collection would delay those
// that stay.
const maxKept = 1024

// reuse takes what was kept last out of a pool; nil: the pool is empty.
func reuse[T any](pool *[]*T) *T {
	n := len(*pool)
	if n == 0 {
		return nil
	}
	t := (*pool)[n-1]
	*pool = (*pool)[:n-1]
	return t
}

// keep puts t into a pool, if there is room.
func keep[T any](pool *[]*T, t *T) {
	if len(*pool) < maxKept {
		*pool = append(*pool, t)
	}
}
