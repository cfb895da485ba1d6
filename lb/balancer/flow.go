package balancer

import (
	"net/netip"

	"github.com/sluice-lb/sluice/lb"
)

// Flow describes a new connection, or a new UDP flow, that needs a backend.
type Flow struct {
	// Frontend is what the client asked for.
	Frontend lb.Frontend
	// Client is the address of the client, for affinity, traffic policies and source
	// ranges. If it is the zero Addr the service is balanced as if it had no affinity,
	// the client is none of this node's, and source ranges do not contain it.
	Client netip.Addr
	// Now is the time, in nanoseconds of a monotonic clock that is the same one
	// for all calls to a Balancer. It is used for affinity and by some algorithms.
	Now int64
	// Tried holds the backends that have failed for this connection already; nil
	// means none.
	Tried *Tried
	// ClientPort is the port of the client, for hashes that count it; 0 if it is not known.
	ClientPort uint16
	// Forwarded says that the kernel forwards the flow, where nothing waits and nothing is limited.
	Forwarded bool
	// Why is where Pick notes why it has chosen what it returns. nil: nowhere.
	Why *lb.Why
}
