package kernelmodes

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/sluice-lb/sluice/internal/netfilter/conntrack"
	"github.com/sluice-lb/sluice/kernelmodes/lab"
	"github.com/sluice-lb/sluice/lb"
)

// TestFlows: which entries of conntrack a change deletes.
func TestFlows(t *testing.T) {
	client, self := netip.MustParseAddrPort("192.0.2.99:4000"), netip.MustParseAddr("192.0.2.10")
	dns := func(backends ...int) lb.Service {
		s := lab.Plain(false, 1, backends...)
		s.Protocol = lb.UDP
		s.Addresses = append(s.Addresses, lb.Address{Addr: lab.Anywhere(false, 30053), Kind: lb.NodePort})
		return s
	}
	other := lab.Plain(false, 2, 3)
	other.Protocol = lb.UDP
	clusterIP, nodePort := dns().Addresses[0].Addr, lab.At(self, 30053)
	pod := func(n int) netip.AddrPort { return dns(n).Backends[0].Addr }
	proxy := lab.At(self, 41000)
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
		var f Flows
		var m lb.Mirror
		was, now := lab.Whole(test.was...), lab.Whole(test.now...)
		m.Fold(&was, false)
		m.Changed()
		m.Fold(&now, false)
		f.Change(m.Changed())
		if test.was == nil {
			f.ChangeAll(m.Services())
		}
		local := map[netip.Addr]bool{self: true, netip.MustParseAddr("127.0.0.1"): true}
		flow := conntrack.Flow{Src: client, Dst: test.asked, Replies: test.answers}
		if test.asked == client { // then the socket of the node port asks
			flow.Src = nodePort
		}
		if got := f[lb.UDP].stale(flow, local); got != test.want {
			t.Errorf("%s: %s answered by %s: deleted %v, want %v", test.name, test.asked, test.answers, got, test.want)
		}
	}
}

// TestAssociations: which entries of SCTP a change deletes.
func TestAssociations(t *testing.T) {
	self := netip.MustParseAddr("192.0.2.10")
	const gone, serves, fails, drains, dead = 1, 2, 3, 4, 5
	all := lab.Plain(false, 1, gone, serves, fails, drains, dead)
	all.Protocol = lb.SCTP
	all.Addresses = append(all.Addresses, lb.Address{Addr: lab.Anywhere(false, 30868), Kind: lb.NodePort, Local: true})
	pod := func(n int) netip.AddrPort { return all.Backends[n-1].Addr }
	some, none := all, all
	some.Backends = slices.Clone(all.Backends[1:])
	some.Backends[fails-2].Ready = false // it fails its check
	some.Backends[drains-2].Ready, some.Backends[drains-2].Serving, some.Backends[drains-2].Terminating = false, true, true
	some.Backends[dead-2].Ready, some.Backends[dead-2].Serving, some.Backends[dead-2].Terminating = false, false, true
	none.Backends = nil
	clusterIP, nodePort, proxy := all.Addresses[0].Addr, lab.At(self, 30868), lab.At(self, 41000)
	for _, test := range []struct {
		name           string
		was, now       []lb.Service // no was: the first Sync
		asked, answers netip.AddrPort
		want           bool
	}{
		{"endpoint gone", []lb.Service{all}, []lb.Service{some}, clusterIP, pod(gone), true},
		{"endpoint gone, asked by node port", []lb.Service{all}, []lb.Service{some}, nodePort, pod(gone), true},
		{"endpoint stays", []lb.Service{all}, []lb.Service{some}, clusterIP, pod(serves), false},
		{"endpoint of another node stays", []lb.Service{all}, []lb.Service{some}, nodePort, pod(serves), false},
		{"endpoint not ready", []lb.Service{all}, []lb.Service{some}, clusterIP, pod(fails), true},
		{"endpoint drains", []lb.Service{all}, []lb.Service{some}, clusterIP, pod(drains), false},
		{"endpoint terminates and does not serve", []lb.Service{all}, []lb.Service{some}, clusterIP, pod(dead), true},
		{"with a proxy", []lb.Service{all}, []lb.Service{some}, clusterIP, proxy, false},
		{"at the node port itself", []lb.Service{all}, []lb.Service{some}, nodePort, nodePort, false},
		{"no endpoints left", []lb.Service{all}, []lb.Service{none}, clusterIP, pod(gone), false},
		{"endpoints again", []lb.Service{none}, []lb.Service{some}, clusterIP, pod(gone), true},
		{"Service gone", []lb.Service{all}, nil, clusterIP, pod(gone), false},
		{"first Sync, endpoint gone", nil, []lb.Service{some}, clusterIP, pod(gone), true},
		{"first Sync, endpoint stays", nil, []lb.Service{some}, clusterIP, pod(serves), false},
		{"first Sync, with a proxy", nil, []lb.Service{some}, clusterIP, proxy, false},
	} {
		var f Flows
		var m lb.Mirror
		was, now := lab.Whole(test.was...), lab.Whole(test.now...)
		m.Fold(&was, false)
		m.Changed()
		m.Fold(&now, false)
		f.Change(m.Changed())
		if test.was == nil {
			f.ChangeAll(m.Services())
		}
		local := map[netip.Addr]bool{self: true}
		if got := f[lb.SCTP].dead(conntrack.Flow{Dst: test.asked, Replies: test.answers}, local); got != test.want {
			t.Errorf("%s: %s answered by %s: deleted %v, want %v", test.name, test.asked, test.answers, got, test.want)
		}
	}
}

// TestLeftoverFlows: which entries are deleted when the rules of an earlier process go.
func TestLeftoverFlows(t *testing.T) {
	clusterIP, tcp := netip.MustParseAddrPort("10.96.0.1:80"), netip.MustParseAddrPort("10.96.0.2:80")
	pod, loopback := netip.MustParseAddrPort("10.244.0.1:8080"), netip.MustParseAddrPort("127.0.0.1:30053")
	self := netip.MustParseAddr("192.0.2.10")
	at := func(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }
	frontends := map[netip.AddrPort]bool{clusterIP: true, at(netip.IPv4Unspecified(), 30053): true}
	local := map[netip.Addr]bool{self: true, netip.MustParseAddr("127.0.0.1"): true}
	for _, test := range []struct {
		asked, answers netip.AddrPort
		want           bool
	}{
		{clusterIP, pod, true}, {clusterIP, at(self, 41000), false}, {tcp, pod, false},
		{at(self, 30053), pod, true}, {at(self, 30053), at(self, 30053), false}, {at(self, 30054), pod, false},
		{loopback, loopback, false},
	} {
		if got := translated(conntrack.Flow{Dst: test.asked, Replies: test.answers}, frontends, local); got != test.want {
			t.Errorf("%s answered by %s: deleted %v, want %v", test.asked, test.answers, got, test.want)
		}
	}
}
