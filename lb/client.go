package lb

import "net/netip"

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

// Client is what is remembered of one client of a service with affinity.
type Client struct {
	Addr     netip.Addr
	Backend  netip.AddrPort
	LastUsed int64 // of a monotonic clock, in ns
}
