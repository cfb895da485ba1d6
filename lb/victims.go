package lb

import (
	"net/netip"
	"slices"
	"sync"
)

// Failures that a client can bring about: it may send what makes a backend reset the connection, or what is not to be
// answered. So that no client has backends ejected that serve others well, each of the last manyVictims is believed
// once in an Outlier.Interval: it takes as many clients as failures in a row, up to one more than these. Where all
// clients have one address, as behind a gateway, a backend that answers none of them is ejected all the same, after
// some intervals instead of at once; and a client that would have it ejected has to see to it that no other one is
// answered for as long. What no client can cause, as a connect that is refused, always counts.

// manyVictims is how many clients of a run are remembered: with that failing for the fifth time, as by default, all.
const manyVictims = 4

// victims are the clients that had the last failures of a run.
type victims struct {
	mu      sync.Mutex // held for some ns, where a backend fails
	clients [manyVictims]netip.Addr
	last    [manyVictims]int64 // when each was believed
	next    int
}

// forget makes them none, as another run begins.
func (v *victims) forget() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.clients = [manyVictims]netip.Addr{}
}

// believe reports whether a failure of a client counts, and remembers it then.
func (v *victims) believe(client netip.Addr, now, interval int64) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	who := HostOf(client)
	at := slices.Index(v.clients[:], who)
	if at >= 0 && now-v.last[at] < interval {
		return false
	}
	if at < 0 {
		at = v.next
		v.next = (v.next + 1) % manyVictims
	}
	v.clients[at], v.last[at] = who, now
	return true
}

// HostOf returns the first of the addresses that the host of a client can have: with IPv6 it has a /64 to choose from
// (RFC 4291, 2.5.1). Limits and shares of a client count by it.
func HostOf(client netip.Addr) netip.Addr {
	if client = plain(client); !client.Is6() {
		return client
	}
	const bits = 64
	p, _ := client.Prefix(bits)
	return p.Addr()
}
