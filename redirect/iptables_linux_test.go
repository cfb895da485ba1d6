package redirect

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
)

func udp(addr netip.AddrPort) lb.Frontend { return lb.Frontend{Protocol: lb.UDP, Addr: addr} }

func tcp(addr netip.AddrPort) lb.Frontend { return lb.Frontend{Protocol: lb.TCP, Addr: addr} }

// TestSteer asks every kind of frontend, from another host and from the node.
func TestSteer(t *testing.T) {
	eachVariant(t, func(t *testing.T, v variant) {
		for _, bind := range []bool{false, true} {
			t.Run(map[bool]string{false: "wildcard", true: "bound"}[bind], func(t *testing.T) {
				l := newLab(t)
				at := netip.Addr{}
				if bind {
					at = nodeAddr[v.ipv6]
				}
				testSteer(t, l, v, at)
			})
		}
	})
}

func testSteer(t *testing.T, l *lab, v variant, bind netip.Addr) {
	s, v6, address := v.bound(bind), v.ipv6, ":0"
	if bind.IsValid() {
		address = netip.AddrPortFrom(bind, 0).String()
	}
	tcpPort, udpPort := serveTCP(t, address), serveUDP(t, address)
	serveTCP(t, ":30080")
	serveUDP(t, ":30080")
	at := func(n int, port uint16) netip.AddrPort { return netip.AddrPortFrom(vip(v6, n), port) }
	onNode := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(nodeAddr[v6], port) }
	anywhere := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(unspecified(v6), port) }
	syncPlan(t, s, Plan{
		TCPPort: tcpPort,
		TCP:     []netip.AddrPort{at(1, 80), at(2, 443), onNode(443), netip.AddrPortFrom(vip(!v6, 1), 80)},
		Ported:  []Ported{{udp(at(1, 53)), udpPort}, {udp(onNode(53)), udpPort}},
		Accept:  []lb.Frontend{tcp(anywhere(30080)), udp(anywhere(30080))},
		Refuse:  []lb.Frontend{tcp(at(3, 80)), udp(at(3, 53)), tcp(anywhere(30081)), udp(anywhere(30081))},
	})
	for _, host := range []*testbed.Host{l.Client, l.Node} {
		for _, addr := range []netip.AddrPort{at(1, 80), at(2, 443), onNode(443), onNode(30080)} {
			l.answers(host, tcp(addr), addr.String())
		}
		for addr, port := range map[netip.AddrPort]uint16{at(1, 53): udpPort, onNode(53): udpPort, onNode(30080): 30080} {
			l.answers(host, udp(addr), fmt.Sprint(port))
		}
		// No endpoints, a node port without them, and straight to the proxy.
		for _, f := range []lb.Frontend{tcp(at(3, 80)), tcp(onNode(30081)), tcp(onNode(tcpPort)),
			udp(at(3, 53)), udp(onNode(30081)), udp(onNode(udpPort))} {
			l.answers(host, f, testbed.Refused)
		}
	}
	loopback := netip.MustParseAddr("127.0.0.1")
	if v6 {
		loopback = netip.IPv6Loopback()
	}
	local := netip.AddrPortFrom(loopback, 30080)
	l.answers(l.Node, tcp(local), local.String())
	if !bind.IsValid() { // straight to the proxy
		l.answers(l.Node, tcp(netip.AddrPortFrom(loopback, tcpPort)), testbed.Refused)
	}
}

// TestUnnumberedInterface has the client behind an interface without an address,
// as some network plugins give each pod, where REDIRECT has nowhere to send to.
// The sockets are on the wildcard address all the same.
func TestUnnumberedInterface(t *testing.T) {
	l := newLab(t)
	node, client := nodeAddr[false], clientAddr[false]
	output(t, "ip", "-4", "address", "flush", "dev", "eth0")
	output(t, "ip", "address", "add", node.String()+"/32", "dev", "cni0")
	output(t, "ip", "route", "add", client.String()+"/32", "dev", "eth0", "src", node.String())
	at, dns := netip.AddrPortFrom(vip(false, 1), 80), netip.AddrPortFrom(vip(false, 1), 53)
	syncPlan(t, &IPTables{BindAddr: node}, Plan{
		TCPPort: serveTCP(t, ":0"), TCP: []netip.AddrPort{at}, Ported: []Ported{{udp(dns), serveUDP(t, ":0")}}})
	l.expect("unnumbered", "host", tcp(at), "answered")
	l.expect("unnumbered", "host", udp(dns), "answered")
}
