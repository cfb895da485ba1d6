package flows

import (
	"net/netip"
	"testing"

	"github.com/sluice-lb/sluice/internal/netfilter/conntrack"
	"github.com/sluice-lb/sluice/lb"
)

// entry is one of conntrack's. Conntrack's translation shows in its status, that of ipvs does not.
func entry(src, asked, answers netip.AddrPort, status conntrack.Status) *conntrack.Entry {
	return &conntrack.Entry{Flow: conntrack.Flow{Src: src, Dst: asked, Replies: answers}, Status: status}
}

const (
	replied    = conntrack.SeenReply
	translated = conntrack.DstTranslated
	both       = replied | translated
)

var (
	at        = netip.MustParseAddrPort
	client    = at("192.0.2.99:4000")
	cluster   = at("10.96.0.1:53")
	nodePort  = at("192.0.2.10:30053")
	anywhere  = at("0.0.0.0:30053")
	loopback  = at("127.0.0.1:30053")
	proxy     = at("192.0.2.10:41000")
	old       = at("192.0.2.10:41001")
	pod, gone = at("10.244.1.10:53"), at("10.244.1.11:53")
	node      = &Node{Local: map[netip.Addr]bool{nodePort.Addr(): true},
		Inside: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}}
)

// TestStale: which entries of UDP are deleted, by what serves their frontend now.
func TestStale(t *testing.T) {
	kernel := Place{Kind: Kernel, Endpoints: []netip.AddrPort{pod}}
	ipvs := Place{Kind: IPVS, Endpoints: []netip.AddrPort{pod}}
	proxied := Place{Kind: Proxy, Port: proxy.Port()}
	with := func(p Place, change func(*Place)) Place { change(&p); return p }
	goesOn := with(kernel, func(p *Place) { p.Port, p.AtSocket = proxy.Port(), true })
	wentOn := with(proxied, func(p *Place) { p.Endpoints = []netip.AddrPort{pod} })
	socket, refused := Place{Kind: Socket}, Place{Kind: Refused}
	for _, test := range []struct {
		name           string
		place          Place
		asked, answers netip.AddrPort
		status         conntrack.Status
		want           bool
	}{
		{"kernel: endpoint stays", kernel, cluster, pod, both, false},
		{"kernel: endpoint stays and has not answered", kernel, cluster, pod, translated, false},
		{"kernel: endpoint gone", kernel, cluster, gone, both, true},
		{"kernel: endpoint gone, by node port", kernel, nodePort, gone, both, true},
		{"kernel: no endpoint", Place{Kind: Kernel}, cluster, pod, both, true},
		{"kernel: was asked before", kernel, cluster, cluster, 0, true},
		{"kernel: was ipvs's", kernel, cluster, pod, replied, true},
		{"kernel: a proxy had it", kernel, cluster, proxy, both, true},
		{"kernel: a proxy has it", goesOn, cluster, proxy, both, false},
		{"kernel: a proxy was asked", goesOn, cluster, proxy, translated, true},
		{"kernel: another port", goesOn, cluster, old, both, true},
		{"kernel: the socket of the node port had it", kernel, nodePort, nodePort, replied, true},
		{"kernel: the socket of the node port has it", goesOn, nodePort, nodePort, replied, false},
		{"kernel: the socket of the node port was asked", goesOn, nodePort, nodePort, 0, true},
		{"kernel: node port by loopback", kernel, loopback, loopback, replied, false},
		{"kernel: another program's", kernel, nodePort, at("172.17.0.2:53"), both, true},
		{"ipvs: endpoint stays", ipvs, cluster, pod, replied, false},
		{"ipvs: endpoint gone", ipvs, cluster, gone, replied, true},
		{"ipvs: rules sent it there", ipvs, cluster, pod, both, false},
		{"proxy: on its port", proxied, cluster, proxy, both, false},
		{"proxy: on its port and has not answered", proxied, cluster, proxy, translated, false},
		{"proxy: on another port", proxied, cluster, old, both, true},
		{"proxy: its number elsewhere", proxied, cluster, at("10.244.1.9:41000"), both, true},
		{"proxy: was asked before", proxied, cluster, cluster, 0, true},
		{"proxy: the kernel had it", proxied, cluster, pod, both, true},
		{"proxy: the kernel has it", wentOn, cluster, pod, both, false},
		{"proxy: the kernel was asked", wentOn, cluster, pod, translated, true},
		{"proxy: ipvs had it", wentOn, cluster, pod, replied, true},
		{"proxy: the kernel had it, endpoint gone", wentOn, cluster, gone, both, true},
		{"proxy: bound elsewhere", with(proxied, func(p *Place) { p.Bind = pod.Addr() }), cluster, proxy, both, true},
		{"proxy: bound there", with(proxied, func(p *Place) { p.Bind = proxy.Addr() }), cluster, proxy, both, false},
		{"proxy: bound anywhere", with(proxied, func(p *Place) { p.Bind = netip.IPv4Unspecified() }), cluster, proxy, both,
			false},
		{"proxy: client not let in", with(proxied, func(p *Place) { p.Sources = node.Inside }), cluster, proxy, both,
			true},
		{"proxy: only for inside", with(proxied, func(p *Place) { p.OnlyInside = true }), cluster, proxy, both, true},
		{"socket: has it", socket, nodePort, nodePort, replied, false},
		{"socket: sent elsewhere", socket, nodePort, gone, both, true},
		{"socket: by loopback", socket, loopback, loopback, replied, false},
		{"socket: only for inside", with(socket, func(p *Place) { p.OnlyInside = true }), nodePort, nodePort, 0, true},
		{"refused", refused, nodePort, nodePort, replied, true},
		{"refused, by loopback", refused, loopback, loopback, 0, true},
		{"gone: was never served", Place{}, cluster, cluster, replied, false},
		{"gone: a proxy had it", Place{}, cluster, proxy, both, true},
		{"gone: the kernel had it", Place{}, cluster, gone, both, true},
		{"gone: another program's", Place{}, cluster, at("172.17.0.2:53"), both, false},
		{"another port", kernel, at("10.96.0.1:54"), gone, both, false},
		{"another address", kernel, at("10.96.0.2:53"), gone, both, false},
		{"no address of the node", kernel, at("192.0.2.11:30053"), gone, both, false},
	} {
		x := &frontend{now: test.place, had: []netip.AddrPort{gone}}
		choose := frontends{cluster: x, anywhere: x}.decide(lb.UDP, func(netip.AddrPort) bool { return false }, node)
		if got := choose(entry(client, test.asked, test.answers, test.status)); got != test.want {
			t.Errorf("%s: deleted %v, want %v", test.name, got, test.want)
		}
	}
}

// TestStaleNodePort: an address of the node that is a frontend itself is not looked at for a node port with its number,
// and a late answer of a node port's socket is no flow of its client's.
func TestStaleNodePort(t *testing.T) {
	f := frontends{anywhere: {now: Place{Kind: Kernel}}}
	for _, hidden := range []bool{false, true} {
		choose := f.decide(lb.UDP, func(a netip.AddrPort) bool { return hidden && a == nodePort }, node)
		if got := choose(entry(client, nodePort, gone, both)); got == hidden {
			t.Errorf("hidden by a frontend %v: deleted %v", hidden, got)
		}
	}
	for _, test := range []struct {
		kind   Kind
		socket bool
		want   bool
	}{{Kernel, false, true}, {IPVS, false, true}, {Kernel, true, false}, {Socket, false, false}, {Nothing, false, false}} {
		f := frontends{anywhere: {now: Place{Kind: test.kind, AtSocket: test.socket}}}
		choose := f.decide(lb.UDP, func(netip.AddrPort) bool { return false }, node)
		if got := choose(entry(nodePort, client, client, 0)); got != test.want {
			t.Errorf("%v: a late answer is deleted %v, want %v", test, got, test.want)
		}
	}
}

// TestStaleAssociations: which entries of SCTP are deleted.
func TestStaleAssociations(t *testing.T) {
	kernel := Place{Kind: Kernel, Endpoints: []netip.AddrPort{pod}}
	for _, test := range []struct {
		name           string
		place          Place
		asked, answers netip.AddrPort
		want           bool
	}{
		{"endpoint gone", kernel, cluster, gone, true},
		{"endpoint gone, by node port", kernel, nodePort, gone, true},
		{"endpoint gone that nobody knew of", kernel, cluster, at("10.244.9.9:53"), true},
		{"endpoint stays", kernel, cluster, pod, false},
		{"with a proxy", kernel, cluster, proxy, false},
		{"at the node port itself", kernel, nodePort, nodePort, false},
		{"no endpoints left", Place{Kind: Kernel}, cluster, gone, false},
		{"Service gone", Place{}, cluster, gone, false},
		{"in user space now", Place{Kind: Proxy, Port: 1}, cluster, gone, false},
	} {
		x := &frontend{now: test.place, had: []netip.AddrPort{gone}}
		choose := frontends{cluster: x, anywhere: x}.decide(lb.SCTP, func(netip.AddrPort) bool { return false }, node)
		if got := choose(entry(client, test.asked, test.answers, both)); got != test.want {
			t.Errorf("%s: deleted %v, want %v", test.name, got, test.want)
		}
	}
}

// TestStaleAsking: a TCP client leaves an endpoint that is gone if that has not answered.
func TestStaleAsking(t *testing.T) {
	x := &frontend{now: Place{Kind: Kernel, Endpoints: []netip.AddrPort{pod}}, had: []netip.AddrPort{gone}}
	choose := frontends{cluster: x}.decide(lb.TCP, func(netip.AddrPort) bool { return false }, node)
	for _, test := range []struct {
		answers netip.AddrPort
		state   conntrack.State
		want    bool
	}{
		{gone, conntrack.TCPSynSent, true}, {gone, conntrack.TCPEstablished, false}, {pod, conntrack.TCPSynSent, false},
	} {
		e := entry(client, cluster, test.answers, translated)
		e.Protocol, e.State = lb.TCP, test.state
		if got := choose(e); got != test.want {
			t.Errorf("at %s in state %v: deleted %v, want %v", test.answers, test.state, got, test.want)
		}
	}
}

// TestChange: the entries of a frontend are checked if a flow may have to leave it: of TCP, if an endpoint has left a
// kernel path.
func TestChange(t *testing.T) {
	one := Place{Kind: Kernel, Endpoints: []netip.AddrPort{pod}}
	two := Place{Kind: Kernel, Endpoints: []netip.AddrPort{pod, gone}}
	limited := Place{Kind: Proxy, Port: 1, Sources: []netip.Prefix{}}
	for _, test := range []struct {
		was, now Place
		unknown  bool
		want     bool
	}{
		{one, one, false, false}, {one, one, true, true}, {one, two, false, false}, {two, one, false, true},
		{Place{}, one, false, true}, {Place{Kind: Proxy, Port: 1}, limited, false, true},
		{Place{Kind: Proxy, Port: 1}, Place{Kind: Proxy, Port: 2}, false, true},
		{Place{Kind: Kernel, AtSocket: true}, Place{Kind: Kernel}, false, true},
	} {
		var s Stale
		s.Change(lb.Frontend{Protocol: lb.UDP, Addr: cluster}, test.was, test.now, test.unknown)
		if x := s.families[0].of[lb.UDP][cluster]; (x != nil) != test.want || test.want && x.now.Kind != test.now.Kind {
			t.Errorf("%+v -> %+v: %+v", test.was, test.now, x)
		}
	}
	var waits Stale // for another try, when an endpoint comes
	dns := lb.Frontend{Protocol: lb.UDP, Addr: cluster}
	waits.Change(dns, Place{}, one, false)
	waits.Change(dns, one, two, false)
	if x := waits.families[0].of[lb.UDP][cluster]; len(x.now.Endpoints) != 2 {
		t.Errorf("a flow at the new endpoint would be deleted: %+v", x)
	}
	web := lb.Frontend{Protocol: lb.TCP, Addr: cluster}
	proxied := Place{Kind: Proxy, Port: 1}
	for _, test := range []struct {
		was, now Place
		want     bool
	}{
		{one, Place{}, false}, {one, two, false}, {two, one, true}, {two, proxied, false}, {proxied, one, false},
	} {
		var s Stale
		if s.Change(web, test.was, test.now, true); s.families[0].until.IsZero() == test.want {
			t.Errorf("TCP, %+v -> %+v: noted %t", test.was, test.now, !test.want)
		}
	}
}
