package ipvs

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/kernelmodes"
	"github.com/sluice-lb/sluice/lb"
)

// TestListing compares what ipvsadm, ip and ipset print of a Service with two endpoints with
// what the package documents.
func TestListing(t *testing.T) {
	n := newNode(t, testbed.Config{})
	s := simple("http", "10.96.0.80", 80, lb.TCP, backend(n.Pods[0], false, 8080), backend(n.Pods[1], false, 8080))
	also(&s, netip.AddrPortFrom(n.Node.Addr4, 30080), lb.NodePort, false)
	n.Sync(s)
	var said []string
	for _, command := range []string{"ipvsadm -ln", listRoutes, "ipset list SLUICE-IPVS4-FRONTENDS | sed -n '/^Members/,$p'"} {
		lines := strings.Split(strings.TrimSpace(n.Node.Run(n.T, "sh", "-c", command)), "\n")
		for i := range lines {
			lines[i] = strings.TrimRight(lines[i], " ") + "\n"
		}
		if strings.HasPrefix(command, "ipset") {
			slices.Sort(lines[1:])
		}
		said = append(said, strings.Join(lines, ""))
	}
	testbed.Golden(t, "testdata/"+"listing"+".txt", strings.Join(said, "\n"))
}

// TestSchedulers: a Service gets each scheduler that the kernel has if it requests it, and
// Fallbacks has those that request what there is not.
func TestSchedulers(t *testing.T) {
	t.Parallel()
	n := newNode(t, testbed.Config{})
	all := slices.DeleteFunc(slices.Clone(schedulers), func(s string) bool { return s == "twos" }) // not in all builds
	serve(t, n.Pods[0], lb.TCP, backend(n.Pods[0], false, 80).Addr)
	var services []lb.Service
	for i, requested := range append(slices.Clip(all), "sh,sh-port", "nosuch", "rr,rr-port", "../rr") {
		s := simple(fmt.Sprintf("s%02d", i), vip(false, i+1).String(), 80, lb.TCP, backend(n.Pods[0], false, 80))
		s.Policies = &lb.Policies{Scheduler: requested}
		services = append(services, s)
	}
	n.engines[0].Scheduler = "lc"
	n.Sync(services...)
	list := n.Node.Run(n.T, "ipvsadm", "-ln")
	for i, s := range services {
		name, _, _ := strings.Cut(s.Policies.Scheduler, ",")
		if i >= len(all) && name != "sh" {
			name = "lc"
		}
		if want := fmt.Sprintf("TCP  %s %s", s.Addresses[0].Addr, name); !strings.Contains(list, want) {
			t.Errorf("no %q in\n%s", want, list)
		}
		if got := ask(n.Client, lb.TCP, s.Addresses[0].Addr); !strings.HasPrefix(got, "pod-0") {
			t.Errorf("scheduler %s: %s", s.Policies.Scheduler, got)
		}
	}
	var fallbacks []string
	for _, f := range n.engines[0].Fallbacks() {
		fallbacks = append(fallbacks, f.Requested+" "+f.Used)
		if f.Reason == "" {
			t.Errorf("no reason: %+v", f)
		}
	}
	if want := []string{"nosuch lc", "rr,rr-port lc", "../rr lc"}; !slices.Equal(fallbacks, want) {
		t.Errorf("fallbacks %q, want %q", fallbacks, want)
	}
	if !n.Verify() {
		t.Error("Verify finds something out of place")
	}
}

// TestAffinity: clients stay where they are, also those on the node of an address
// with policy Local, where the port must be translated all the same.
func TestAffinity(t *testing.T) {
	t.Parallel()
	n := newNode(t, testbed.Config{})
	for _, v6 := range []bool{false, true} {
		s := simple("web", vip(v6, 80).String(), 80, lb.TCP, n.Serving(len(n.Pods), lb.TCP, v6, 8080)...)
		for i := range s.Backends {
			s.Backends[i].Local = i == 0
		}
		also(&s, netip.AddrPortFrom(vip(v6, 81), 80), lb.ExternalIP, true)
		s.AffinityTimeout = int64(3*time.Hour) - 1
		n.Sync(s)
		for _, host := range []*testbed.Host{n.Client, n.Pods[1], n.Node} {
			for _, number := range []int{80, 81} {
				seen := map[string]bool{}
				for range 6 {
					seen[ask(host, lb.TCP, netip.AddrPortFrom(vip(v6, number), 80))] = true
				}
				for who := range seen {
					if len(seen) > 1 || !strings.HasPrefix(who, "pod-") {
						t.Errorf("%s gets %v at %s", host, seen, vip(v6, number))
					}
				}
			}
		}
		want := fmt.Sprintf("%s rr persistent 10800", s.Addresses[0].Addr)
		if list := n.Node.Run(n.T, "ipvsadm", "-ln"); !strings.Contains(list, want) {
			t.Errorf("no %q in\n%s", want, list)
		}
	}
}

// TestWhoMayAsk restricts a load-balancer IP to sources, and finds what else listens on
// the node unreachable at addresses of Services.
func TestWhoMayAsk(t *testing.T) {
	t.Parallel()
	n := newNode(t, testbed.Config{Clients: 2})
	serve(t, n.Node, lb.TCP, netip.MustParseAddrPort("[::]:9090"))
	for _, v6 := range []bool{false, true} {
		mine := n.Clients[0].Addr(v6)
		s := simple("web", vip(v6, 80).String(), 80, lb.TCP, n.Serving(1, lb.TCP, v6, 8080)...)
		at := netip.AddrPortFrom(vip(v6, 81), 80)
		only := []netip.Prefix{netip.PrefixFrom(mine, mine.BitLen())}
		s.Addresses = append(s.Addresses, lb.Address{Addr: at, Kind: lb.LoadBalancerIP, Sources: only})
		n.Sync(s)
		for host, want := range map[*testbed.Host]string{n.Clients[0]: "pod-0", n.Clients[1]: "dropped", n.Pods[1]: "dropped", n.Node: "dropped"} {
			if got := askFor(want, host, lb.TCP, at); !strings.HasPrefix(got, want) {
				t.Errorf("%s asks: %s, want %s", host, got, want)
			}
			if got := ask(host, lb.TCP, s.Addresses[0].Addr); !strings.HasPrefix(got, "pod-0") {
				t.Errorf("%s asks the cluster IP: %s", host, got)
			}
			if got := ask(host, lb.TCP, netip.AddrPortFrom(at.Addr(), 9090)); got != "refused" {
				t.Errorf("%s reaches what listens on the node at %s: %s", host, at.Addr(), got)
			}
		}
		// The node may if its own address may, whatever it asks from.
		own := n.About.Addresses[slices.IndexFunc(n.About.Addresses, func(a netip.Addr) bool { return a.Is6() == v6 })]
		s.Addresses = slices.Clone(s.Addresses) // those of before are the engine's
		s.Addresses[1].Sources = append(only, netip.PrefixFrom(own, own.BitLen()))
		n.Sync(s)
		if got := ask(n.Node, lb.TCP, at); !strings.HasPrefix(got, "pod-0") {
			t.Errorf("the node asks: %s", got)
		}
	}
}

// TestMasquerade: which client's address an endpoint sees, for each option.
func TestMasquerade(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		set       func(*Engine)
		pod, host bool // preserved
	}{
		"pod CIDR":  {func(*Engine) {}, true, false},
		"all":       {func(e *Engine) { e.MasqueradeAll = true }, false, false},
		"cluster":   {func(e *Engine) { e.LocalCIDRs = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")} }, true, false},
		"bridge":    {func(e *Engine) { e.LocalBridge = "cni0" }, true, false},
		"interface": {func(e *Engine) { e.LocalInterfaces = "cn" }, true, false},
		"wrong":     {func(e *Engine) { e.LocalInterfaces = "eth" }, false, true},
		"bit":       {func(e *Engine) { e.MasqueradeMark, e.MasqueradeAll = 1, true }, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, testbed.Config{})
			n.engines[0] = &Engine{}
			c.set(n.engines[0])
			n.Sync(simple("web", "10.96.0.80", 80, lb.TCP, n.Serving(1, lb.TCP, false, 80)...))
			for host, preserved := range map[*testbed.Host]bool{n.Pods[1]: c.pod, n.Client: c.host} {
				got := ask(host, lb.TCP, netip.MustParseAddrPort("10.96.0.80:80"))
				if is := got == "pod-0 "+host.Addr4.String(); is != preserved || !strings.HasPrefix(got, "pod-0 ") {
					t.Errorf("%s asks: %q; preserved: want %v", host, got, preserved)
				}
			}
		})
	}
	n := newNode(t, testbed.Config{})
	for _, mark := range []uint32{3, 1 << 16} {
		n.Node.DoT(n.T, func() error {
			if err := (&Engine{Masquerade: kernelmodes.Masquerade{MasqueradeMark: mark}}).Probe(t.Context()); err == nil {
				t.Errorf("mark %#x is taken", mark)
			}
			return nil
		})
	}
}

// TestSettings looks at the kernel's settings, and at those that an option asks for.
func TestSettings(t *testing.T) {
	t.Parallel()
	n := newNode(t, testbed.Config{})
	get := func(key string) string { return strings.TrimSpace(n.Node.Run(n.T, "sysctl", "-n", key)) }
	s := simple("web", "10.96.0.80", 80, lb.TCP, backend(n.Pods[0], false, 80))
	arp := get("net.ipv4.conf.all.arp_ignore")
	n.Sync(s)
	for key, want := range map[string]string{
		"net.ipv4.vs.conntrack": "1", "net.ipv4.vs.expire_nodest_conn": "1", "net.ipv4.vs.expire_quiescent_template": "1",
		"net.ipv4.ip_forward": "1", "net.ipv4.vs.conn_reuse_mode": "1", "net.ipv4.conf.all.arp_ignore": arp,
	} {
		if got := get(key); got != want {
			t.Errorf("%s is %s, want %s", key, got, want)
		}
	}
	n.engines[0] = &Engine{
		StrictARP: true, TCPTimeout: 100*time.Second - 1, TCPFinTimeout: 20 * time.Second, UDPTimeout: 30 * time.Second,
	}
	n.Sync(s)
	if a, b := get("net.ipv4.conf.all.arp_ignore"), get("net.ipv4.conf.all.arp_announce"); a != "1" || b != "2" {
		t.Errorf("arp_ignore %s, arp_announce %s, want 1, 2", a, b)
	}
	if got := n.Node.Run(n.T, "ipvsadm", "-l", "--timeout"); !strings.Contains(got, "100 20 30") {
		t.Errorf("timeouts: %s", got)
	}
	for release, want := range map[string]bool{"3.10.0": false, "4.1.0": true, "5.8.18-el8": true, "5.9.0": false, "6.18.1": false, "odd": false} {
		if _, got := (&Engine{}).settings(release)["ipv4/vs/conn_reuse_mode"]; got != want {
			t.Errorf("conn_reuse_mode is set with kernel %s: %v", release, got)
		}
	}
}

// TestNodePorts gives node ports to some addresses only, and leaves virtual servers in
// excluded ranges.
func TestNodePorts(t *testing.T) {
	n := newNode(t, testbed.Config{})
	n.engines[0].ExcludeCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.80/32")}
	s := simple("web", "10.96.0.80", 80, lb.TCP, n.Serving(1, lb.TCP, false, 80)...)
	also(&s, netip.AddrPortFrom(n.Node.Alt4, 30080), lb.NodePort, false)
	also(&s, netip.MustParseAddrPort("127.0.0.1:30080"), lb.NodePort, false)
	also(&s, netip.AddrPortFrom(n.Node.Alt4, 80), lb.ExternalIP, false) // which the node has
	n.Sync(s)
	for addr, want := range map[netip.AddrPort]string{
		netip.AddrPortFrom(n.Node.Alt4, 30080): "pod-0", netip.AddrPortFrom(n.Node.Alt4, 80): "pod-0",
		netip.AddrPortFrom(n.Node.Addr4, 30080): "refused",
	} {
		if got := askFor(want, n.Client, lb.TCP, addr); !strings.HasPrefix(got, want) {
			t.Errorf("asking %s: %s, want %s", addr, got, want)
		}
	}
	if got := n.routes(); strings.Contains(got, n.Node.Alt4.String()) {
		t.Errorf("the node's address has a route of ours:\n%s", got)
	}
	n.Sync(s, simple("other", "10.96.0.90", 80, lb.TCP, s.Backends...))
	n.Sync()
	if got := n.Node.Run(n.T, "ipvsadm", "-ln"); strings.Contains(got, "10.96.0.90:80") || !strings.Contains(got, "10.96.0.80:80 rr") {
		t.Errorf("want the excluded one left, and not the other:\n%s", got)
	}
}

// TestSCTP sends a message through one-to-one sockets of the kernel.
func TestSCTP(t *testing.T) {
	n := newNode(t, testbed.Config{})
	for _, v6 := range []bool{false, true} {
		b := backend(n.Pods[0], v6, 3868)
		ln, err := n.Pods[0].ListenSCTP(b.Addr)
		testbed.Check(t, err)
		at := netip.AddrPortFrom(vip(v6, 38), 38)
		s := simple("diameter", at.Addr().String(), 38, lb.SCTP, b)
		port := netip.AddrPortFrom(n.Node.Addr(v6), 30038)
		also(&s, port, lb.NodePort, false)
		n.Sync(s)
		for _, to := range []netip.AddrPort{at, port} {
			for _, host := range []*testbed.Host{n.Client, n.Pods[1], n.Node} {
				c, err := host.DialSCTP(netip.AddrPort{}, to, testbed.Patience)
				testbed.Check(t, err)
				conn, err := ln.Accept()
				if err == nil {
					err = conn.SetTimeout(testbed.Patience)
				}
				if err != nil {
					t.Fatalf("%s asks %s: %v", host, to, err)
				}
				if _, err := c.Write([]byte("message")); err != nil {
					t.Fatal(err)
				}
				buf := make([]byte, 64)
				if k, err := conn.Read(buf); err != nil || string(buf[:k]) != "message" {
					t.Errorf("%s asks %s: %q, %v", host, to, buf[:k], err)
				}
				conn.Close()
				c.Close()
			}
		}
		s.Backends = nil
		n.Sync(s)
		if got := n.engines[0].Stats(); v6 == false && got.RealServers == 0 {
			t.Error("what has just ended is not waited for")
		}
		ln.Close()
	}
}

// TestRestartSCTP: a client whose endpoint has gone without a word reaches another one from the same port.
func TestRestartSCTP(t *testing.T) {
	n := newNode(t, testbed.Config{Pods: 2})
	for _, v6 := range []bool{false, true} {
		at, from := netip.AddrPortFrom(vip(v6, 39), 39), netip.AddrPortFrom(n.Client.Addr(v6), 3900)
		for _, pod := range n.Pods[:2] {
			b := backend(pod, v6, 3868)
			ln, err := pod.ListenSCTP(b.Addr)
			testbed.Check(t, err)
			testbed.Check(t, ln.SetTimeout(testbed.Patience))
			n.Sync(simple("diameter", at.Addr().String(), at.Port(), lb.SCTP, b))
			c, err := n.Client.DialSCTP(from, at, testbed.Patience)
			testbed.Check(t, err)
			if conn, err := ln.Accept(); err != nil {
				t.Errorf("%s: %s has no association: %v", family(v6), pod, err)
			} else {
				defer conn.Close()
			}
			to := fmt.Sprintf("blackhole %s/%d", at.Addr(), at.Addr().BitLen())
			n.Client.Run(t, "sh", "-c", "ip route add "+to)
			c.Abort() // the route drops the ABORT
			n.Client.Run(t, "sh", "-c", "ip route del "+to)
			ln.Close()
		}
	}
}
