package udp

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/testbed"
)

func TestMain(m *testing.M) { os.Exit(testbed.Main(m)) }

// cable connects this process's host with another one.
type cable struct {
	t     *testing.T
	host  netlink.Link
	other *testbed.Host
}

// newCable makes a cable to a new host.
//
//	host: 10.0.n.1/24, 10.0.n.11/24, fe80::1    other: 10.0.n.2/24, fe80::2
func newCable(t *testing.T, n int) *cable {
	t.Helper()
	here, other := testbed.HereT(t), testbed.NewHostsT(t, "other")[0]
	name := fmt.Sprint("host", n)
	addrs := func(list ...string) (all []netip.Prefix) {
		for _, s := range list {
			all = append(all, netip.MustParsePrefix(s))
		}
		return all
	}
	err := testbed.Cable(
		testbed.End{Host: here, Name: name,
			Addrs: addrs(fmt.Sprintf("10.0.%d.1/24", n), fmt.Sprintf("10.0.%d.11/24", n), "fe80::1/64")},
		testbed.End{Host: other, Name: "other", Addrs: addrs(fmt.Sprintf("10.0.%d.2/24", n), "fe80::2/64")})
	testbed.Check(t, err)
	link, err := netlink.LinkByName(name)
	testbed.Check(t, err)
	t.Cleanup(func() {
		if err := netlink.LinkDel(link); err != nil {
			t.Error(err)
		}
	})
	return &cable{t: t, host: link, other: other}
}

// inOther runs f on the other host. Sockets stay on the host that they were made on.
func (c *cable) inOther(f func()) {
	c.t.Helper()
	c.other.DoT(c.t, func() error { f(); return nil })
}

// sysctl sets an option of this process's host until the test ends.
func sysctl(t *testing.T, path, value string) {
	t.Helper()
	testbed.HereT(t)
	path = "/proc/sys/net/" + path
	before, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, []byte(value), 0)
	}
	testbed.Check(t, err)
	t.Cleanup(func() { _ = os.WriteFile(path, before, 0) }) // fails if the interface is gone
}

// A host with several addresses answers from the one that was asked, and answers
// link-local clients on their link.
func TestAddressesOfAHost(t *testing.T) {
	c := newCable(t, 0)
	for _, family := range []struct {
		at, backend string
		asked       []string
	}{
		{"0.0.0.0:0", "127.0.0.1:0", []string{"10.0.0.1", "10.0.0.11"}},
		{"[::]:0", "[::1]:0", []string{"fe80::1%other"}},
	} {
		p := startProxyAt(t, 2, nil, family.at, echo(t, family.backend).addr)
		for _, ip := range family.asked {
			// A connected client takes answers from no other address.
			var cl *client
			c.inOther(func() { cl = dial(t, netip.AddrPortFrom(netip.MustParseAddr(ip), p.addr.Port())) })
			for range 3 {
				if a := cl.ask("q"); a != "q" {
					t.Errorf("%s answers %q", ip, a)
				}
			}
		}
	}
}

// Two clients with the same link-local address and port, on two links, are two
// clients.
func TestLinkLocalClients(t *testing.T) {
	p := startProxyAt(t, 1, nil, "[::]:0", echo(t, "[::1]:0").addr)
	var clients []*client
	for n := range 2 {
		newCable(t, n).inOther(func() {
			link, err := netlink.LinkByName("other")
			testbed.Check(t, err)
			zone := fmt.Sprint(link.Attrs().Index) // package net remembers names of the other namespace
			conn, err := net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP("fe80::2"), Port: 4000, Zone: zone},
				&net.UDPAddr{IP: net.ParseIP("fe80::1"), Port: int(p.addr.Port()), Zone: zone})
			testbed.Check(t, err)
			t.Cleanup(func() { _ = conn.Close() })
			clients = append(clients, &client{UDPConn: conn, t: t, buf: make([]byte, 100)})
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
	var there *backend
	newCable(t, 0).inOther(func() { there = reflecting(t, "10.0.0.2:0") })
	here := reflecting(t, "127.0.0.1:0")
	p := startProxy(t, 1, nil, here.addr)
	c := dial(t, p.addr)
	if a := c.ask("q"); !strings.HasPrefix(a, "127.0.0.1:") {
		t.Errorf("the first backend sees %s", a)
	}
	p.setBackends(here.addr, there.addr)
	_ = here.Close()
	if a := c.ask("q"); !strings.HasPrefix(a, "10.0.0.1:") {
		t.Errorf("the next backend sees %s", a)
	}
	if n := p.Stats().Refused; n != 1 {
		t.Errorf("%d refusals, want 1", n)
	}
}

// Datagrams larger than the link's MTU pass in fragments, whole in the end.
func TestFragments(t *testing.T) {
	c := newCable(t, 0)
	var b *backend
	c.inOther(func() { b = echo(t, "10.0.0.2:0") })
	p := startProxyAt(t, 1, nil, "10.0.0.1:0", b.addr)
	var cl *client
	c.inOther(func() { cl = dial(t, p.addr) })
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
	newCable(t, 0)
	sysctl(t, "ipv4/neigh/host0/mcast_solicit", "1")
	sysctl(t, "ipv4/neigh/host0/retrans_time_ms", "50")
	p := startProxyAt(t, 1, nil, "10.0.0.1:0", netip.MustParseAddrPort("10.0.0.99:53"), naming(t, "a").addr)
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
	newCable(t, 0)
	rule := []string{"OUTPUT", "-d", "10.0.0.2", "-j", "DROP"}
	if out, err := exec.Command("iptables", append([]string{"-A"}, rule...)...).CombinedOutput(); err != nil {
		t.Skipf("no iptables here: %v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("iptables", append([]string{"-D"}, rule...)...).Run() })
	p := startProxy(t, 1, nil, netip.MustParseAddrPort("10.0.0.2:53"), naming(t, "a").addr)
	for range 2 {
		if a := dial(t, p.addr).ask("q"); a != "a" {
			t.Errorf("answer = %q", a)
		}
	}
	s := p.Stats()
	if s.Refused != 1 || s.SendErrors != 1 || s.DatagramsIn != 2 {
		t.Errorf("stats = %+v, want 1 refusal and nothing lost", s)
	}
	if n := p.LB.Stats()[0].Failures; n != 1 {
		t.Errorf("the balancer knows of %d failures, want 1", n)
	}
}

// The way to the backend is slower than the client: what does not fit is dropped
// and counted, and the flow goes on.
func TestSlowWay(t *testing.T) {
	c := newCable(t, 0)
	var b *backend
	c.inOther(func() { b = echo(t, "10.0.0.2:0") })
	p := startProxy(t, 1, nil, b.addr)
	// A rate at which what is sent stays in the socket's send buffer.
	const rate = 100_000 // bytes a second
	slow := &netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: c.host.Attrs().Index, Handle: netlink.MakeHandle(1, 0),
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
	c := newCable(t, 0)
	b := reflecting(t, "127.0.0.1:0")
	p := startProxyAt(t, 1, nil, "10.0.0.1:0", b.addr)
	sysctl(t, "ipv4/ip_local_port_range", "40000 40003")
	clients := make([]*client, 10)
	ports := map[string]bool{}
	c.inOther(func() {
		for i := range clients {
			clients[i] = dial(t, p.addr)
		}
	})
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
	if s := p.Stats(); s.Active != 4 || s.Evicted != 16 || s.NoPort+s.NoDescriptor != 0 || len(ports) != 4 || paused != 16 {
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
	c := newCable(t, 0)
	p := startProxyAt(t, 2, nil, "10.0.0.1:0", naming(t, "one").addr)
	second, err := p.Listen(frontend(2, false), netip.AddrPortFrom(netip.MustParseAddr("10.0.0.11"), p.addr.Port()))
	testbed.Check(t, err)
	p.setServices(p.LB.Table().Services()[0], service(2, naming(t, "two").addr))
	for range 20 {
		for want, addr := range map[string]netip.AddrPort{"one": p.addr, "two": second} {
			var cl *client
			c.inOther(func() { cl = dial(t, addr) })
			if a := cl.ask("q"); a != want {
				t.Errorf("%s answers %q, want %q", addr, a, want)
			}
		}
	}
}
