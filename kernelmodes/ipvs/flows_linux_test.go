package ipvs

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestFlows: which entries of conntrack a change deletes.
func TestFlows(t *testing.T) {
	at := netip.MustParseAddrPort
	frontend, other, client := at("192.0.2.10:30053"), at("192.0.2.10:30054"), at("192.0.2.99:4000")
	gone, stays, masqueraded := at("10.244.1.10:53"), at("10.244.1.11:53"), at("192.0.2.10:61000")
	var f flows
	f.add(frontend, netip.AddrPort{}) // it gets a virtual server
	f.add(frontend, gone)
	for _, test := range []struct {
		name                       string
		protocol                   uint8
		from, asked, answers, back netip.AddrPort
		want                       bool
	}{
		{"the backend has gone", unix.IPPROTO_UDP, client, frontend, gone, masqueraded, true},
		{"another backend", unix.IPPROTO_UDP, client, frontend, stays, masqueraded, false},
		{"a socket had it", unix.IPPROTO_UDP, client, frontend, frontend, client, true},
		{"a socket answered too late", unix.IPPROTO_UDP, frontend, client, client, frontend, true},
		{"another frontend", unix.IPPROTO_UDP, client, other, gone, masqueraded, false},
		{"another frontend's socket", unix.IPPROTO_UDP, other, client, client, other, false},
		{"TCP", unix.IPPROTO_TCP, client, frontend, gone, masqueraded, false},
	} {
		flow := &netlink.ConntrackFlow{}
		flow.Forward.Protocol = test.protocol
		flow.Forward.SrcIP, flow.Forward.SrcPort = test.from.Addr().AsSlice(), test.from.Port()
		flow.Forward.DstIP, flow.Forward.DstPort = test.asked.Addr().AsSlice(), test.asked.Port()
		flow.Reverse.SrcIP, flow.Reverse.SrcPort = test.answers.Addr().AsSlice(), test.answers.Port()
		flow.Reverse.DstIP, flow.Reverse.DstPort = test.back.Addr().AsSlice(), test.back.Port()
		if got := f.MatchConntrackFlow(flow); got != test.want {
			t.Errorf("%s: deleted %v, want %v", test.name, got, test.want)
		}
	}
}
