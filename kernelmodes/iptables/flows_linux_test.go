package iptables

import (
	"net/netip"
	"testing"

	"github.com/sluice-lb/sluice/internal/netfilter"
	"github.com/sluice-lb/sluice/internal/netfilter/conntrack"
	"github.com/sluice-lb/sluice/lb"
)

// TestFlows: which entries of conntrack a change deletes.
func TestFlows(t *testing.T) {
	client, self := netip.MustParseAddrPort("192.0.2.99:4000"), netip.MustParseAddr("192.0.2.10")
	dns := func(backends ...int) lb.Service {
		s := plain(false, 1, backends...)
		s.Protocol = lb.UDP
		s.Addresses = append(s.Addresses, lb.Address{Addr: anywhere(false, 30053), Kind: lb.NodePort})
		return s
	}
	other := plain(false, 2, 3)
	other.Protocol = lb.UDP
	clusterIP, nodePort := dns().Addresses[0].Addr, at(self, 30053)
	pod := func(n int) netip.AddrPort { return dns(n).Backends[0].Addr }
	proxy := at(self, 41000)
	for _, test := range []struct {
		name     string
		was, now []lb.Service // no was: the first Sync
		asked    netip.AddrPort
		answers  netip.AddrPort
		want     bool
	}{
		{"endpoint stays", []lb.Service{dns(1, 2)}, []lb.Service{dns(1)}, clusterIP, pod(1), false},
		{"endpoint gone", []lb.Service{dns(1, 2)}, []lb.Service{dns(1)}, clusterIP, pod(2), true},
		{"endpoint gone, asked by node port", []lb.Service{dns(1, 2)}, []lb.Service{dns(1)}, nodePort, pod(2), true},
		{
			"node port by loopback", []lb.Service{dns(1, 2)}, []lb.Service{dns(1)},
			netip.MustParseAddrPort("127.0.0.1:30053"), netip.MustParseAddrPort("127.0.0.1:30053"), false,
		},
		{
			"another Service", []lb.Service{dns(1), other}, []lb.Service{dns(2), other},
			other.Addresses[0].Addr, pod(1), false,
		},
		{"no endpoints left", []lb.Service{dns(1)}, []lb.Service{dns()}, clusterIP, pod(1), true},
		{"Service gone", []lb.Service{dns(1)}, []lb.Service{other}, clusterIP, pod(1), true},
		{"Service gone to a proxy", []lb.Service{dns(1)}, []lb.Service{other}, clusterIP, proxy, false},
		{
			"Service comes, was asked before", []lb.Service{other}, []lb.Service{other, dns(1)}, clusterIP,
			clusterIP, true,
		},
		{"Service comes from a proxy", []lb.Service{other}, []lb.Service{other, dns(1)}, clusterIP, proxy, false},
		{
			"Service comes from the socket of its node port", []lb.Service{other}, []lb.Service{other, dns(1)},
			nodePort, nodePort, true,
		},
		{
			"Service comes, the socket of its node port answered too late", []lb.Service{other}, []lb.Service{other, dns(1)},
			client, client, true,
		},
		{
			"Service gone, the socket of its node port answered too late", []lb.Service{dns(1)}, []lb.Service{other},
			client, client, false,
		},
		{"first Sync, from a proxy of before", nil, []lb.Service{dns(1)}, clusterIP, proxy, true},
		{"first Sync, endpoint stays", nil, []lb.Service{dns(1)}, clusterIP, pod(1), false},
	} {
		var f flows
		var m lb.Mirror
		was, now := whole(test.was...), whole(test.now...)
		m.Fold(&was, false)
		m.Changed()
		m.Fold(&now, false)
		f.change(m.Changed())
		if test.was == nil {
			f.changeAll(m.Services())
		}
		local := map[netip.Addr]bool{self: true, netip.MustParseAddr("127.0.0.1"): true}
		flow := conntrack.Flow{Src: client, Dst: test.asked, Replies: test.answers}
		if test.asked == client { // then the socket of the node port asks
			flow.Src = nodePort
		}
		if got := f.stale(flow, local); got != test.want {
			t.Errorf("%s: %s answered by %s: deleted %v, want %v", test.name, test.asked, test.answers, got, test.want)
		}
	}
}

// TestLeftoverFlows: which entries are deleted when the rules of an earlier process go.
func TestLeftoverFlows(t *testing.T) {
	s := plain(false, 1, 1)
	s.Protocol = lb.UDP
	s.Addresses = append(s.Addresses, lb.Address{Addr: anywhere(false, 30053), Kind: lb.NodePort})
	tcp := plain(false, 2, 1)
	c := newContent(netfilter.NewRuleset(nil, layout(false)), shape{})
	c.edit(shape{}, map[lb.ID]*lb.Service{s.ID: &s, tcp.ID: &tcp}, []lb.Change{{New: &s}, {New: &tcp}})
	frontends := make(map[netip.AddrPort]bool)
	findUDP(c.String(), false, frontends)
	if len(frontends) != 2 || !frontends[s.Addresses[0].Addr] || !frontends[s.Addresses[1].Addr] {
		t.Fatalf("found %v in:\n%s", frontends, c.String())
	}
	self := netip.MustParseAddr("192.0.2.10")
	local := map[netip.Addr]bool{self: true, netip.MustParseAddr("127.0.0.1"): true}
	clusterIP, pod, loopback := s.Addresses[0].Addr, s.Backends[0].Addr, netip.MustParseAddrPort("127.0.0.1:30053")
	for _, test := range []struct {
		asked, answers netip.AddrPort
		want           bool
	}{
		{clusterIP, pod, true}, {clusterIP, at(self, 41000), false}, {tcp.Addresses[0].Addr, pod, false},
		{at(self, 30053), pod, true}, {at(self, 30053), at(self, 30053), false}, {at(self, 30054), pod, false},
		{loopback, loopback, false},
	} {
		if got := translated(conntrack.Flow{Dst: test.asked, Replies: test.answers}, frontends, local); got != test.want {
			t.Errorf("%s answered by %s: deleted %v, want %v", test.asked, test.answers, got, test.want)
		}
	}
}
