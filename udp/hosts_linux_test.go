package udp

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// A host with several addresses answers from the one that was asked, and answers
// link-local clients on their link.
func TestAddressesOfAHost(t *testing.T) {
	l := newLab(t)
	cni0, err := net.InterfaceByName("cni0")
	testbed.Check(t, err)
	m := cni0.HardwareAddr
	local := netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 8: m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]})
	zone := inPod(l, func() string { return linkIndex(t, "eth0") })
	for _, family := range []struct {
		at, backend string
		asked       []string
	}{
		{"0.0.0.0:0", "127.0.0.1:0", []string{"10.244.1.1", l.Node.Addr4.String(), l.Node.Alt4.String()}},
		{"[::]:0", "[::1]:0", []string{local.WithZone(zone).String()}},
	} {
		p := startProxyAt(t, 2, nil, family.at, echo(t, family.backend).addr)
		for _, ip := range family.asked {
			// A connected client takes answers from no other address.
			at := netip.AddrPortFrom(netip.MustParseAddr(ip), p.addr.Port())
			cl := inPod(l, func() *client { return dial(t, at) })
			for range 3 {
				if a := cl.ask("q"); a != "q" {
					t.Errorf("%s answers %q", ip, a)
				}
			}
		}
	}
}

// linkIndex is the zone of an interface of the host that the caller is on: package net remembers names of others.
func linkIndex(t *testing.T, name string) string {
	t.Helper()
	link, err := netlink.LinkByName(name)
	testbed.Check(t, err)
	return fmt.Sprint(link.Attrs().Index)
}

// Two clients with the same link-local address and port, on two links, are two
// clients.
func TestLinkLocalClients(t *testing.T) {
	p := startProxyAt(t, 1, nil, "[::]:0", echo(t, "[::1]:0").addr)
	var clients []*client
	here := testbed.HereT(t)
	for n, other := range testbed.NewHostsT(t, "one", "two") {
		end := func(h *testbed.Host, addr string) testbed.End {
			return testbed.End{Host: h, Name: fmt.Sprint("link", n), Addrs: []netip.Prefix{netip.MustParsePrefix(addr)}}
		}
		testbed.Check(t, testbed.Cable(end(here, "fe80::1/64"), end(other, "fe80::2/64"))) // which goes with the other
		other.DoT(t, func() error {
			zone := linkIndex(t, fmt.Sprint("link", n))
			clients = append(clients, dialFrom(t, &net.UDPAddr{IP: net.ParseIP("fe80::2"), Port: 4000, Zone: zone},
				netip.AddrPortFrom(netip.MustParseAddr("fe80::1").WithZone(zone), p.addr.Port())))
			return nil
		})
	}
	for range 3 {
		for i, c := range clients {
			if a := c.ask(fmt.Sprint(i)); a != fmt.Sprint(i) {
				t.Errorf("client %d is answered %q", i, a)
			}
		}
	}
	if n := p.Stats().Created; n != 2 {
		t.Errorf("%d flows, want 2", n)
	}
}

// A flow that goes from one backend to another reaches it with the source address
// of the new way, not of the old one.
func TestNextBackendIsElsewhere(t *testing.T) {
	there := inPod(newLab(t), func() *backend { return reflecting(t, onPod) })
	here := reflecting(t, "127.0.0.1:0")
	p := startProxy(t, 1, nil, here.addr)
	c := dial(t, p.addr)
	if a := c.ask("q"); !strings.HasPrefix(a, "127.0.0.1:") {
		t.Errorf("the first backend sees %s", a)
	}
	p.setBackends(here.addr, there.addr)
	_ = here.Close()
	if a := c.ask("q"); !strings.HasPrefix(a, "10.244.1.1:") {
		t.Errorf("the next backend sees %s", a)
	}
	if n := p.Stats().Refused; n != 1 {
		t.Errorf("%d refusals, want 1", n)
	}
}

// Datagrams larger than the link's MTU pass in fragments, whole in the end.
func TestFragments(t *testing.T) {
	l := newLab(t)
	b := inPod(l, func() *backend { return echo(t, onPod) })
	p := startProxyAt(t, 1, nil, onNode, b.addr)
	cl := inPod(l, func() *client { return dial(t, p.addr) })
	for _, size := range []int{1472, 1473, 30000, 65507} {
		q := string(bytes.Repeat([]byte{byte(size), 0x5a}, size)[:size])
		if a := cl.ask(q); a != q {
			t.Errorf("%d bytes came back as %d", size, len(a))
		}
	}
}

// A backend whose host is gone: the kernel finds out in time, by ARP, and the
// question goes to another.
func TestHostIsGone(t *testing.T) {
	newLab(t)
	sysctl(t, "net.ipv4.neigh.cni0.mcast_solicit", "1")
	sysctl(t, "net.ipv4.neigh.cni0.retrans_time_ms", "50")
	p := startProxyAt(t, 1, nil, onNode, netip.MustParseAddrPort("10.244.1.99:53"), naming(t, "a").addr)
	for range 2 {
		if a := dial(t, p.addr).ask("q"); a != "a" {
			t.Errorf("answer = %q", a)
		}
	}
	if s := p.Stats(); s.Refused != 1 || s.Resent != 1 {
		t.Errorf("stats = %+v, want 1 datagram sent again", s)
	}
}

// A rule of the host forbids the way to a backend: the send itself says so (EPERM),
// and the datagram goes to another.
func TestForbiddenByRule(t *testing.T) {
	newLab(t)
	rule := []string{"OUTPUT", "-d", "10.244.1.10", "-j", "DROP"}
	if out, err := exec.Command("iptables", append([]string{"-A"}, rule...)...).CombinedOutput(); err != nil {
		t.Skipf("no iptables here: %v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("iptables", append([]string{"-D"}, rule...)...).Run() })
	p := startProxy(t, 1, nil, netip.MustParseAddrPort("10.244.1.10:53"), naming(t, "a").addr)
	for range 2 {
		if a := dial(t, p.addr).ask("q"); a != "a" {
			t.Errorf("answer = %q", a)
		}
	}
	s := p.Stats()
	if s.Refused != 1 || s.SendErrors != 1 || s.DatagramsIn != 2 {
		t.Errorf("stats = %+v, want 1 refusal and nothing lost", s)
	}
	if n := p.LB.Counters().All()[0].Failures; n != 1 {
		t.Errorf("the balancer knows of %d failures, want 1", n)
	}
}

// The way to the backend is slower than the client: what does not fit is dropped
// and counted, and the flow goes on.
func TestSlowWay(t *testing.T) {
	l := newLab(t)
	b := inPod(l, func() *backend { return echo(t, onPod) })
	p := startProxy(t, 1, nil, b.addr)
	cni0, err := netlink.LinkByName("cni0")
	testbed.Check(t, err)
	// A rate at which what is sent stays in the socket's send buffer.
	const rate = 100_000 // bytes a second
	slow := &netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: cni0.Attrs().Index, Handle: netlink.MakeHandle(1, 0),
			Parent: netlink.HANDLE_ROOT},
		Rate: rate, Buffer: uint32(netlink.Xmittime(rate, 4000)), Limit: 100 << 20,
	}
	if err := netlink.QdiscAdd(slow); err != nil {
		t.Skipf("this kernel has no tbf qdisc: %v", err)
	}
	cl := dial(t, p.addr)
	const sent = 1000
	for range sent {
		cl.send(string(make([]byte, 1000)))
	}
	eventually(t, "all is sent or dropped", func() bool { s := p.Stats(); return s.DatagramsIn+s.Busy == sent })
	if s := p.Stats(); s.Busy == 0 || s.SendErrors == 0 || s.Refused != 0 || s.Active != 1 {
		t.Errorf("stats = %+v, want some datagrams dropped", s)
	}
	testbed.Check(t, netlink.QdiscDel(slow))
	cl.send("last")
	for cl.receive() != "last" {
	}
}

// No ephemeral port is left: the oldest flow gives its own up. For a while then none is looked for, which
// takes the kernel long; what would need one is dropped, and flows go on.
func TestPortsRunOut(t *testing.T) {
	l := newLab(t)
	b := reflecting(t, "127.0.0.1:0")
	p := startProxyAt(t, 1, nil, onNode, b.addr)
	sysctl(t, "net.ipv4.ip_local_port_range", "40000 40003")
	clients := inPod(l, func() []*client { return dialAll(t, p.addr, 10) })
	ports := map[string]bool{}
	sh := p.shards[0]
	paused := 0
	for range 2 {
		for _, cl := range clients {
			ports[cl.ask("q")] = true
			onLoop(t, sh, func() {
				if sh.portless != 0 {
					paused++
				}
				sh.portless = 0
			})
		}
	}
	s := p.Stats()
	if s.Active != 4 || s.Evicted != 16 || s.NoPort+s.NoDescriptor != 0 || len(ports) != 4 || paused != 16 {
		t.Errorf("stats = %+v with ports %v, want 4 flows at a time; %d pauses, want 16", s, ports, paused)
	}
	onLoop(t, sh, func() { sh.portless = eventloop.Now() + int64(time.Hour) })
	clients[0].send("q")
	eventually(t, "a datagram is dropped", func() bool { return p.Stats().NoPort == 1 })
	clients[9].ask("q")
	if s := p.Stats(); s.Evicted != 16 {
		t.Errorf("stats = %+v, want no more flows evicted", s)
	}
}

// A frontend's socket is on its own port of its own address only: the same port
// serves another frontend at another address.
func TestSamePortOfTwoAddresses(t *testing.T) {
	l := newLab(t)
	p := startProxyAt(t, 2, nil, l.Node.Addr4.String()+":0", naming(t, "one").addr)
	second, err := p.Listen(frontend(2, false), netip.AddrPortFrom(l.Node.Alt4, p.addr.Port()))
	testbed.Check(t, err)
	p.setServices(p.LB.Table().Services()[0], service(2, naming(t, "two").addr))
	for range 20 {
		for want, addr := range map[string]netip.AddrPort{"one": p.addr, "two": second} {
			cl := inPod(l, func() *client { return dial(t, addr) })
			if a := cl.ask("q"); a != want {
				t.Errorf("%s answers %q, want %q", addr, a, want)
			}
		}
	}
}
