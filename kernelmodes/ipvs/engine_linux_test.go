package ipvs

import (
	"context"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/internal/flows"
	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
)

// dial connects over TCP and closes when the test ends.
func dial(t *testing.T, from *testbed.Host, addr netip.AddrPort) net.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testbed.Patience)
	defer cancel()
	c, err := from.Dial(ctx, "tcp", addr.String())
	testbed.Check(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// echo sends something over a connection and waits for it to come back.
func echo(t *testing.T, c net.Conn) {
	t.Helper()
	testbed.Check(t, c.SetDeadline(time.Now().Add(testbed.Patience)))
	if _, err := io.WriteString(c, "echo"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
}

// echoes has the first pods echo what they are sent at port 7.
func (n *node) echoes(pods int) (out []lb.Backend) {
	n.T.Helper()
	for _, pod := range n.Pods[:pods] {
		s, err := pod.EchoTCP(":7")
		if err != nil {
			n.T.Fatal(err)
		}
		n.T.Cleanup(func() { _ = s.Close() })
		out = append(out, backend(pod, false, 7))
	}
	return out
}

// TestDrain removes a backend, and then the Service, under a connection: it goes on to
// its end, new ones go elsewhere, and nothing is left when it has ended.
func TestDrain(t *testing.T) {
	n := newNode(t, testbed.Config{})
	backends := n.echoes(2)
	at := netip.MustParseAddrPort("10.96.0.7:7")
	s := simple("echo", at.Addr().String(), 7, lb.TCP, backends[0])
	n.Sync(s)
	c := dial(t, n.Client, at)
	echo(t, c)

	s.Backends = backends[1:]
	n.Sync(s)
	if got := n.engines[0].Stats(); got.RealServers != 2 || got.Draining != 1 {
		t.Errorf("%+v with a connection to a backend that has gone, want 2 real servers, 1 draining", got)
	}
	echo(t, c)
	other := dial(t, n.Client, at)
	echo(t, other)
	if !n.Verify() {
		t.Error("Verify finds something out of place while a backend drains")
	}

	n.Sync()
	if got := n.engines[0].Stats(); got.VirtualServers != 1 || got.Draining != 2 {
		t.Errorf("%+v with connections to a Service that has gone, want 1 virtual server, 2 draining", got)
	}
	echo(t, c)
	echo(t, other)
	if got := ask(n.Client, lb.TCP, at); got != "refused" {
		t.Errorf("a new connection to a Service that has gone: %s", got)
	}
	// An engine that has not seen any of this goes on with it.
	n.engines[0] = &Engine{}
	n.Sync(simple("other", "10.96.0.8", 80, lb.TCP, backends[0]))
	echo(t, c)
	for _, c := range []net.Conn{c, other} {
		// What ends with a reset is forgotten in ten seconds, with a FIN in two minutes.
		testbed.Check(t, c.(*net.TCPConn).SetLinger(0))
		_ = c.Close()
	}
	testbed.Eventually(n.T, "the kernel has forgotten the connections", func() bool {
		var list string
		n.Node.DoT(n.T, func() error {
			b, err := os.ReadFile("/proc/thread-self/net/ip_vs_conn")
			list = string(b)
			return err
		})
		return strings.Count(list, "\n") <= 1 // a title
	})
	testbed.Eventually(n.T, "nothing is left of the Service that has gone", func() bool {
		if !n.Verify() {
			t.Fatal("Verify finds something out of place")
		}
		return n.engines[0].Stats().VirtualServers == 1
	})
	if got := n.routes(); strings.Contains(got, at.Addr().String()+" ") {
		t.Errorf("its address is left:\n%s", got)
	}
}

// TestUDPLeavesAtOnce: the next datagram of a client whose backend goes is answered.
func TestUDPLeavesAtOnce(t *testing.T) {
	n := newNode(t, testbed.Config{})
	for _, v6 := range []bool{false, true} {
		backends := n.Serving(2, lb.UDP, v6, 53)
		at := netip.AddrPortFrom(vip(v6, 53), 53)
		s := simple("dns", at.Addr().String(), 53, lb.UDP, backends...)
		n.Sync(s)
		c, err := n.Client.Dial(t.Context(), "udp", at.String())
		testbed.Check(t, err)
		defer c.Close()
		who := func() string {
			_ = c.SetDeadline(time.Now().Add(testbed.Patience))
			buf := make([]byte, 128)
			if _, err := c.Write([]byte("?")); err != nil {
				t.Fatal(err)
			}
			k, err := c.Read(buf)
			if err != nil {
				t.Fatalf("%s: a datagram has no answer: %v", family(v6), err)
			}
			name, _, _ := strings.Cut(string(buf[:k]), " ")
			return name
		}
		first := who()
		if again := who(); again != first {
			t.Errorf("%s: %s, then %s answers", family(v6), first, again)
		}
		s.Backends = slices.DeleteFunc(slices.Clone(backends), func(b lb.Backend) bool {
			return slices.ContainsFunc(n.Pods, func(h *testbed.Host) bool {
				return h.Name == first && b.Addr.Addr() == h.Addr(v6)
			})
		})
		n.Sync(s)
		n.Reconcile(flows.IPVS, s)
		if now := who(); now == first {
			t.Errorf("%s: %s answers after it has gone", family(v6), now)
		}
		if got := n.engines[1].Stats().Draining + n.engines[0].Stats().Draining; got != 0 {
			t.Errorf("%s: %d backends drain", family(v6), got)
		}
	}
}

// TestInterference breaks what we wrote as other programs might, in every way we look for; Verify
// sees it and Sync mends it.
func TestInterference(t *testing.T) {
	t.Parallel()
	n := newNode(t, testbed.Config{})
	var services []lb.Service
	for _, v6 := range []bool{false, true} {
		s := simple("web", vip(v6, 80).String(), 80, lb.TCP, n.Serving(2, lb.TCP, v6, 80)...)
		also(&s, netip.AddrPortFrom(vip(v6, 81), 80), lb.LoadBalancerIP, true)
		s.Backends[1].Local = false
		services = append(services, s)
	}
	n.Sync(services...)
	if !n.Verify() {
		t.Fatal("Verify finds something out of place at once")
	}
	for _, command := range []string{
		"ipvsadm -C",
		"ipvsadm -d -t 10.96.0.80:80 -r " + services[0].Backends[0].Addr.String(),
		"ipvsadm -e -t [2001:db8:96::50]:80 -r [" + services[1].Backends[0].Addr.Addr().String() + "]:80 -m -w 0",
		"ipvsadm -E -t 10.96.0.80:80 -s wlc",
		"ipvsadm -E -t 10.96.0.80:80 -s rr -p 60",
		"ipvsadm -a -t 10.96.0.80:80 -r 10.244.1.99:80 -m",
		"ip route del local 10.96.0.80 table local",
		"ip -6 route del local 2001:db8:96::50 table local",
		"ip route add local 10.96.99.99 dev lo table local proto 83",
		"ip route flush table local proto 83",
		"ipset flush SLUICE-IPVS4-FRONTENDS",
		"ipset flush",
		"ipset del SLUICE-IPVS4-NEAR 10.96.0.81,tcp:80",
		"ipset add SLUICE-IPVS6-REFUSE 2001:db8:96::50,tcp:80",
		"iptables -t mangle -F",
		"iptables -t nat -F SLUICE-IPVS-POST",
		"iptables -t nat -D POSTROUTING 1",
		"iptables -F FORWARD",
		"ip6tables -t mangle -F SLUICE-IPVS-NEAR",
		"iptables -D SLUICE-IPVS-REFUSE 1",
		"iptables -t nat -F; iptables -t nat -X; iptables -t mangle -F; iptables -t mangle -X; iptables -F; iptables -X; for i in 1 2 3 4 5 6 7 8 9; do ipset destroy 2>/dev/null && break; sleep 1; done",
	} {
		n.Node.Run(n.T, "sh", "-c", command)
		if n.Verify() {
			t.Errorf("%s: Verify does not notice", command)
		}
		n.Sync(services...)
		if !n.Verify() {
			t.Errorf("%s: Verify finds something out of place after Sync", command)
		}
		for _, v6 := range []bool{false, true} {
			for _, host := range []*testbed.Host{n.Client, n.Pods[2]} {
				for _, number := range []int{80, 81} {
					if got := ask(host, lb.TCP, netip.AddrPortFrom(vip(v6, number), 80)); !strings.HasPrefix(got, "pod-") {
						t.Errorf("%s: then %s asks %s: %s", command, host, vip(v6, number), got)
					}
				}
			}
		}
		if t.Failed() {
			t.Log(n.Node.Run(n.T, "sh", "-c", "ipvsadm -ln; ip route show table local; iptables-save"))
			return
		}
	}
}

// TestForeign: virtual servers, sets, rules and addresses of other programs outlive
// everything that we do.
func TestForeign(t *testing.T) {
	t.Parallel()
	n := newNode(t, testbed.Config{})
	n.Node.Run(n.T, "sh", "-c", `ipvsadm -A -t 192.0.2.10:9999 -s wrr && ipvsadm -a -t 192.0.2.10:9999 -r 10.244.1.10:99 -m -w 3 &&
		ipvsadm -A -f 77 -s lc && ipvsadm -A -u [2001:db8:1::10]:99 -s rr &&
		ip link add kube-ipvs0 type dummy && ip addr add 10.96.77.77/32 dev kube-ipvs0 &&
		ipset create KUBE-CLUSTER-IP hash:ip,port && iptables -t nat -N KUBE-SERVICES && iptables -t nat -A PREROUTING -j KUBE-SERVICES`)
	look := func() string {
		// The tables may be there already, as Probe made some, with a mark in them.
		return n.Node.Run(n.T, "sh", "-c", "(ipvsadm -Sn; ip -o addr show dev kube-ipvs0; ipset list -n; iptables -S; iptables -t nat -S; iptables -t mangle -S; ip6tables -t mangle -S) | grep -v SLUICE-CREATED-TABLE")
	}
	before := look()
	s := simple("web", "10.96.0.80", 80, lb.TCP, backend(n.Pods[0], false, 80))
	n.Sync(s, simple("web", "2001:db8:96::80", 80, lb.TCP, backend(n.Pods[0], true, 80)))
	n.Sync()
	n.engines = [2]*Engine{{}, {IPv6: true}}
	n.Sync(s)
	for _, line := range []string{"-a -t 192.0.2.10:9999 -r 10.244.1.10:99 -m -w 3", "-A -f 77 -s lc", "-A -u [2001:db8:1::10]:99 -s rr"} {
		if got := n.Node.Run(n.T, "ipvsadm", "-Sn"); !strings.Contains(got, line) {
			t.Errorf("lost: %s; there are\n%s", line, got)
		}
	}
	n.Node.DoT(n.T, func() error { return Cleanup(t.Context()) })
	if after := look(); after != before {
		t.Errorf("Cleanup leaves\n%s\nthere was\n%s", after, before)
	}
	n.Node.DoT(n.T, func() error { return Cleanup(t.Context()) })
	if got := n.routes(); got != "" {
		t.Errorf("Cleanup leaves routes:\n%s", got)
	}
}

// TestCrash: an engine that knows nothing finds what one before it has left: what it
// is not to forward is removed, also where the address is the node's own.
func TestCrash(t *testing.T) {
	t.Parallel()
	n := newNode(t, testbed.Config{})
	elsewhere := lb.Backend{Addr: netip.MustParseAddrPort("10.244.2.10:80"), Ready: true, Serving: true}
	s := simple("web", "10.96.0.80", 80, lb.TCP, backend(n.Pods[0], false, 80), elsewhere)
	also(&s, netip.AddrPortFrom(netip.IPv4Unspecified(), 30080), lb.NodePort, true)
	n.Sync(s)
	list := n.Node.Run(n.T, "ipvsadm", "-ln")
	if !strings.Contains(list, "192.0.2.10:30080") || !strings.Contains(list, "FWM") {
		t.Fatalf("there is no node port or no mark:\n%s", list)
	}
	n.engines[0] = &Engine{}
	n.Sync(simple("other", "10.96.0.81", 80, lb.TCP, backend(n.Pods[0], false, 80)))
	want := "TCP  10.96.0.81:80 rr"
	if list := n.Node.Run(n.T, "ipvsadm", "-ln"); strings.Count(list, "rr") != 1 || !strings.Contains(list, want) {
		t.Errorf("want nothing but %s:\n%s", want, list)
	}
	if got := strings.Fields(n.routes()); !slices.Contains(got, "10.96.0.81") || slices.Contains(got, "10.96.0.80") {
		t.Errorf("addresses: %v", got)
	}
	// Nothing to forward any more, in a process that knows of nothing before: it is removed.
	n.engines[0] = &Engine{}
	n.Sync()
	if list := n.Node.Run(n.T, "ipvsadm", "-ln"); strings.Contains(list, "rr") {
		t.Errorf("left over:\n%s", list)
	}
}

// TestOneChange changes one of 5,000 Services, and counts what is written, which is
// about that Service, and bytes that are allocated.
func TestOneChange(t *testing.T) {
	n := newNode(t, testbed.Config{})
	var services []lb.Service
	for i := range map[bool]int{false: 5000, true: 200}[testing.Short()] {
		services = append(services, simple("s", vip(false, i+1).String(), 80, lb.TCP, backend(n.Pods[0], false, 80)))
		services[i].Name += vip(false, i).String()
	}
	n.Sync(services...)
	count := func(what string, most uint64, change func()) {
		writes := n.engines[0].Stats().Writes
		was := slices.Clone(services)
		change()
		d := between(was, services)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		n.Node.DoT(n.T, func() error { return n.engines[0].Sync(t.Context(), d, n.About) })
		runtime.ReadMemStats(&after)
		if got := n.engines[0].Stats().Writes - writes; got > most {
			t.Errorf("%s: %d writes, want at most %d", what, got, most)
		}
		const limit = 64 << 10 // the first time memory is taken that serves again
		if got := after.TotalAlloc - before.TotalAlloc; got > limit {
			t.Errorf("%s: %d bytes are allocated, at most %d are right", what, got, limit)
		}
	}
	count("nothing", 0, func() {})
	// Its weight, and it with itself as client.
	count("one backend more", 2, func() {
		services[7].Backends = append(services[7].Backends, backend(n.Pods[1], false, 80))
	})
	count("one backend less", 3, func() { services[7].Backends = services[7].Backends[:1] })
	count("one Service less", 9, func() { services = services[1:] })
}

// TestStepAside: a node port goes to a program that listens there, while a
// connection that ipvs forwards goes on.
func TestStepAside(t *testing.T) {
	n := newNode(t, testbed.Config{})
	for _, v6 := range []bool{false, true} {
		at := netip.AddrPortFrom(n.Node.Addr(v6), 30007)
		if !v6 {
			n.echoes(1)
		}
		s := simple("echo", vip(v6, 7).String(), 7, lb.TCP, backend(n.Pods[0], v6, 7))
		also(&s, at, lb.NodePort, false)
		n.Sync(s)
		c := dial(t, n.Client, at)
		echo(t, c)
		serve(t, n.Node, lb.TCP, at)
		n.Sync()
		for range 3 {
			if got := ask(n.Client, lb.TCP, at); !strings.HasPrefix(got, "node ") {
				t.Errorf("%s: the node port is answered by %q, want the node", family(v6), got)
			}
		}
		echo(t, c)
		n.Sync(s)                                                                               // and back
		if got := askFor("dropped", n.Client, lb.TCP, at); !strings.HasPrefix(got, "dropped") { // it says nothing of itself
			t.Errorf("%s: the node port is answered by %q, want the echo", family(v6), got)
		}
		echo(t, c)
		_ = c.Close()
		n.Sync()
	}
}
