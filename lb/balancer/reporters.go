package balancer

import (
	"net/netip"
	"slices"
	"sync"

	"github.com/sluice-lb/sluice/lb"
)

// Some failures can be caused by a client: it may send what makes a backend reset the connection, or leave unanswered.
// So that one client cannot have a backend ejected that serves others well, each of the last manyReporters clients is
// believed once in an Outlier.Interval. Behind a gateway all clients have one address: a backend that answers none of
// them is ejected after some intervals. A failure that no client can cause, such as a refused connect, always counts.

// manyReporters is how many clients of a run are remembered: all but the last, with the default of five failures.
const manyReporters = 4

// reporters are the clients that had the last failures of a run of failures.
type reporters struct {
	mu      sync.Mutex // held for some ns, where a backend fails
	clients [manyReporters]netip.Addr
	last    [manyReporters]int64 // when each was believed
	next    int
}

// forget begins a run.
func (v *reporters) forget() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.clients = [manyReporters]netip.Addr{}
}

// believe reports whether a failure of a client counts, and remembers it then.
func (v *reporters) believe(client netip.Addr, now, interval int64) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	who := lb.HostOf(client)
	at := slices.Index(v.clients[:], who)
	if at >= 0 && now-v.last[at] < interval {
		return false
	}
	if at < 0 {
		at = v.next
		v.next = (v.next + 1) % manyReporters
	}
	v.clients[at], v.last[at] = who, now
	return true
}
