package iptables

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/kernelmodes/lab"
	"github.com/sluice-lb/sluice/lb"
)

// TestParseList reads a list as the kernel prints it.
func TestParseList(t *testing.T) {
	text := "src=192.0.2.1 ttl: 64 last_seen: 4295011534 oldest_pkt: 2 4295011230, 4295011534\n" +
		"src=2001:0db8:0000:0000:0000:0000:0000:0001 ttl: 0 last_seen: 7 oldest_pkt: 1 7\n"
	backend := netip.MustParseAddrPort("10.244.1.10:80")
	have, err := parseList([]byte(text), backend)
	want := []lb.Client{
		{Addr: netip.MustParseAddr("192.0.2.1"), Backend: backend, LastUsed: 4295011534},
		{Addr: netip.MustParseAddr("2001:db8::1"), Backend: backend, LastUsed: 7},
	}
	if err != nil || !slices.Equal(have, want) {
		t.Errorf("have %v, %v, want %v", have, err, want)
	}
	for _, bad := range []string{"src=192.0.2.1\n", "src=x ttl: 64 last_seen: 1 oldest_pkt: 1 1\n", "src=192.0.2.1 ttl: 64 last_seen: x oldest_pkt: 1 1\n"} {
		if _, err := parseList([]byte(bad), backend); err == nil {
			t.Errorf("%q is read", bad)
		}
	}
}

// TestClients: clients that are written are listed, and the kernel sends them to their backends.
func TestClients(t *testing.T) {
	lab.Clients(t, func(ipv6 bool) lab.Remembering { return engineOf(testbed.IPTables{IPv6: ipv6}) })
}
