package balancer

import (
	"net/netip"
	"slices"

	"github.com/sluice-lb/sluice/lb"
)

// Choice is the answer to one Pick: a backend, where a connection or UDP flow is in flight
// until Done. It is one pointer and may be copied; the zero Choice is not valid.
type Choice struct{ backend *backend }

// Valid reports whether c was returned by a successful Pick.
func (c Choice) Valid() bool { return c.backend != nil }

// Backend returns the address to connect to, or the zero AddrPort if c is not
// valid.
func (c Choice) Backend() netip.AddrPort {
	if c.backend == nil {
		return netip.AddrPort{}
	}
	return c.backend.addr
}

// Service returns the service that c is for, or the zero ID if c is not valid.
func (c Choice) Service() lb.ID {
	if c.backend == nil {
		return lb.ID{}
	}
	return c.backend.service.id
}

// ProxyVersion is Policies.ProxyVersion for the service that c is for.
func (c Choice) ProxyVersion() uint8 {
	if c.backend == nil {
		return 0
	}
	return c.Policies().ProxyVersion(c.backend.service.id.Protocol)
}

// CountsInFlight is Policies.CountsInFlight of the service that c is for, in one atomic load.
func (c Choice) CountsInFlight() bool {
	return c.backend != nil && c.backend.service.countsInFlight.Load()
}

// Live reports whether the backend is still in the current table and ready or
// serving, and for UDP not left out as a bad one. It is one atomic load, for each datagram of a flow that does not
// end by itself.
func (c Choice) Live() bool {
	return c.backend != nil && c.backend.condition.Load()&live != 0
}

// Done says that the connection has ended, or could not be made. It must be
// called exactly once for each successful Pick, if Failed is not. err is what the backend, not the client,
// did wrong after it had answered. Done of a choice that is not valid does nothing.
func (c Choice) Done(err error) {
	if c.backend == nil {
		return
	}
	if err != nil {
		c.backend.failures.Add(1)
	}
	c.backend.end()
}

// maxTried is the number of backends that a Tried remembers. Dialling gives up
// after fewer attempts.
const maxTried = 8

// Tried remembers the backends that have already failed for one connection, so
// that Pick avoids them: the last 8 of them. The zero Tried is empty. It is for one goroutine.
type Tried struct {
	backends [maxTried]*backend
	next     uint8 // slot to write; counts on beyond maxTried
}

// Add remembers the backend of c, and reports whether it is another than those before. A choice that is not valid is
// ignored.
func (t *Tried) Add(c Choice) (another bool) {
	if c.backend == nil || t.has(c.backend) {
		return false
	}
	t.backends[t.next%maxTried] = c.backend
	t.next++
	return true
}

// none reports whether nothing was tried. t may be nil.
func (t *Tried) none() bool { return t == nil || t.next == 0 }

// has reports whether b was tried. t may be nil, b may not.
func (t *Tried) has(b *backend) bool {
	return t != nil && slices.Contains(t.backends[:], b)
}

// because notes why, if that is asked.
func (f *Flow) because(why lb.Why) {
	if f.Why != nil {
		*f.Why = why
	}
}
