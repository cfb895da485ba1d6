package ipvs

import (
	"net/netip"
	"testing"

	"github.com/sluice-lb/sluice/internal/netfilter/conntrack"
)

// TestFlows: which entries of conntrack a change deletes.
func TestFlows(t *testing.T) {
	at := netip.MustParseAddrPort
	frontend, other, client := at("192.0.2.10:30053"), at("192.0.2.10:30054"), at("192.0.2.99:4000")
	gone, stays := at("10.244.1.10:53"), at("10.244.1.11:53")
	var f flows
	f.add(frontend, netip.AddrPort{}) // it gets a virtual server
	f.add(frontend, gone)
	for _, test := range []struct {
		name                 string
		from, asked, answers netip.AddrPort
		want                 bool
	}{
		{"the backend has gone", client, frontend, gone, true},
		{"another backend", client, frontend, stays, false},
		{"a socket had it", client, frontend, frontend, true},
		{"a socket answered too late", frontend, client, client, true},
		{"another frontend", client, other, gone, false},
		{"another frontend's socket", other, client, client, false},
	} {
		flow := conntrack.Flow{Src: test.from, Dst: test.asked, Replies: test.answers}
		if got := f.stale(flow); got != test.want {
			t.Errorf("%s: deleted %v, want %v", test.name, got, test.want)
		}
	}
}
