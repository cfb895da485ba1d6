package e2e

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// loadBalancer is the manifest of a Service of type LoadBalancer; more is the rest
// of its spec, status of its status.
func loadBalancer(name, addr, protocol string, nodePort int, more, ingress string) string {
	ip, port, _ := strings.Cut(addr, ":")
	s := fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata:\n  name: %s\nspec:\n  type: LoadBalancer\n  clusterIP: %s\n  ports:\n  - port: %s\n    protocol: %s\n    nodePort: %d\n%s",
		name, ip, port, protocol, nodePort, more)
	if ingress != "" {
		s += fmt.Sprintf("status:\n  loadBalancer:\n    ingress:\n    - ip: %s\n", ingress)
	}
	return s
}

// TestLocalhostNodePorts: of both families and protocols, and really held.
func TestLocalhostNodePorts(t *testing.T) {
	t.Parallel()
	l := lab.New(t, testbed.Config{Pods: 1})
	pod := l.Pods[0]
	testbed.Keep(t)(pod.WhoTCP(":8080"))
	testbed.Keep(t)(pod.WhoUDP(pod.Addr4.String() + ":8080"))
	testbed.Keep(t)(pod.WhoUDP("[" + pod.Addr6.String() + "]:8080"))
	for i, protocol := range []string{"TCP", "UDP"} {
		name := strings.ToLower(protocol)
		l.Write(name+".yaml", fmt.Sprintf(`apiVersion: v1
kind: Service
metadata:
  name: %s
spec:
  type: NodePort
  clusterIPs: [10.96.0.%d, "2001:db8:96::%d"]
  ports:
  - port: 80
    protocol: %s
    nodePort: 3008%d
`, name, 20+i, 20+i, protocol, i), testbed.SliceManifest(name, 1, 8080, protocol, pod.Addr4.String()),
			strings.Replace(testbed.SliceManifest(name, 6, 8080, protocol, `"`+pod.Addr6.String()+`"`), "addressType: IPv4", "addressType: IPv6", 1))
	}
	l.Start()
	for _, host := range []string{"127.0.0.1", "::1", l.Node.Addr4.String(), l.Node.Alt4.String(), l.Node.Alt6.String()} {
		if name, err := l.Node.Who(net.JoinHostPort(host, "30080")); err != nil || name != "pod-0" {
			t.Errorf("TCP on %s: %q, %v", host, name, err)
		}
		addr := net.JoinHostPort(host, "30081")
		if name, err := l.Node.TryAsk("udp", addr, testbed.Patience); err != nil || name != "pod-0" {
			t.Errorf("UDP on %s: %q, %v", host, name, err)
		}
	}
	for _, want := range []string{"0.0.0.0:30080", "[::]:30080", "0.0.0.0:30081", "[::]:30081"} {
		if out := l.Output("ss", "-lntuH"); !strings.Contains(out, want) {
			t.Errorf("ss does not show %s:\n%s", want, out)
		}
	}
	// Both addresses of the node answer a client elsewhere, each by itself.
	for _, host := range []string{l.Node.Addr4.String(), l.Node.Alt4.String(), l.Node.Addr6.String(), l.Node.Alt6.String()} {
		addr := net.JoinHostPort(host, "30081")
		if name, err := l.Client.TryAsk("udp", addr, testbed.Patience); err != nil || name != "pod-0" {
			t.Errorf("UDP on %s from another host: %q, %v", host, name, err)
		}
	}
}

// TestNodePortAddresses: only the addresses asked for listen; of a family of which none is asked for all do.
func TestNodePortAddresses(t *testing.T) {
	t.Parallel()
	l := lab.New(t, testbed.Config{Pods: 1})
	testbed.Keep(t)(l.Pods[0].WhoTCP(":8080"))
	l.Write("web.yaml", loadBalancer("web", lab.WebAddr, "TCP", 30080, "", ""),
		testbed.SliceManifest("web", 1, 8080, "TCP", testbed.Addrs(l.Pods...)...))
	l.Start("--nodeport-addresses", "localhost,"+l.Node.Alt4.String()+"/32")
	for host, open := range map[string]bool{"127.0.0.1": true, l.Node.Alt4.String(): true, l.Node.Addr4.String(): false} {
		_, err := l.Node.Who(net.JoinHostPort(host, "30080"))
		if (err == nil) != open {
			t.Errorf("node port on %s: %v, want open %v", host, err, open)
		}
	}
	stopped(l)
	l.Start("--nodeport-addresses", l.Node.Alt6.String()+"/128")
	for _, host := range []string{"127.0.0.1", l.Node.Alt4.String(), l.Node.Addr4.String()} {
		if _, err := l.Node.Who(net.JoinHostPort(host, "30080")); err != nil {
			t.Errorf("node port on %s, an address of IPv6 asked for: %v", host, err)
		}
	}
	stopped(l)
	l.Start("--nodeport-addresses", "primary", "--bind-address", l.Node.Alt4.String())
	for host, open := range map[string]bool{"127.0.0.1": false, l.Node.Alt4.String(): true, l.Node.Addr4.String(): false} {
		if _, err := l.Node.Who(net.JoinHostPort(host, "30080")); (err == nil) != open {
			t.Errorf("node port on %s, primary asked for: %v, want open %v", host, err, open)
		}
	}
}

// stopped ends Sluice, so that it can be started with other flags.
func stopped(l *lab.Lab) {
	l.T.Helper()
	l.Signal(syscall.SIGTERM)
	if code := l.Wait(); code != 0 {
		l.T.Fatalf("exit code %d", code)
	}
}

// TestNodePortConflict: it harms nothing else, is counted, and is over by itself.
func TestNodePortConflict(t *testing.T) {
	t.Parallel()
	l := lab.New(t, testbed.Config{Pods: 1})
	testbed.Keep(t)(l.Pods[0].WhoTCP(":8080"))
	squatter, err := l.Node.Listen(t.Context(), "tcp4", "0.0.0.0:30080")
	testbed.Check(t, err)
	defer squatter.Close()
	l.Write("web.yaml", loadBalancer("web", lab.WebAddr, "TCP", 30080, "", "203.0.113.80"),
		testbed.SliceManifest("web", 1, 8080, "TCP", testbed.Addrs(l.Pods...)...))
	l.Start()
	for _, addr := range []string{lab.WebAddr, "203.0.113.80:80"} {
		if name, err := l.Client.Who(addr); err != nil || name != "pod-0" {
			t.Errorf("%s: %q, %v", addr, name, err)
		}
	}
	if n := l.Metric("sluice_node_port_conflicts"); n != 1 {
		t.Errorf("%v conflicts counted, want 1", n)
	}
	if !strings.Contains(l.Log.String(), "hold port 30080 of default/web") {
		t.Error("the log does not name the port and the Service")
	}
	squatter.Close()
	l.Eventually("the node port is held", func() bool { return l.Metric("sluice_node_port_conflicts") == 0 })
	if name, err := l.Client.Who(l.Node.Addr4.String() + ":30080"); err != nil || name != "pod-0" {
		t.Errorf("the node port after the conflict: %q, %v", name, err)
	}
}

// TestSourceRanges: others are dropped before they could send a byte.
func TestSourceRanges(t *testing.T) {
	t.Parallel()
	testSourceRanges(lab.New(t, testbed.Config{Clients: 2, Pods: 1}), testbed.Dropped, false)
}

// testSourceRanges has a second client in the source ranges; what TCP gets outside of them is
// other, and UDP nothing; node says whether that is so on the node itself. Neither the cluster IP
// nor the node port is restricted.
func testSourceRanges(l *lab.Lab, other string, node bool) {
	testbed.Keep(l.T)(l.Pods[0].WhoTCP(":8080"))
	testbed.Keep(l.T)(l.Pods[0].WhoUDP(l.Pods[0].Addr4.String() + ":8080"))
	for i, protocol := range []string{"TCP", "UDP"} {
		name := strings.ToLower(protocol)
		l.Write(name+".yaml", loadBalancer(name, fmt.Sprintf("10.96.0.%d:80", 30+i), protocol, 30080+i,
			fmt.Sprintf("  loadBalancerSourceRanges: [%q]\n", l.Clients[1].Addr4.String()+"/32"), fmt.Sprintf("203.0.113.%d", 30+i)),
			testbed.SliceManifest(name, 1, 8080, protocol, testbed.Addrs(l.Pods...)...))
	}
	l.Start()
	hosts := []*testbed.Host{l.Clients[0], l.Clients[1], l.Pods[0]}
	if node {
		hosts = append(hosts, l.Node)
	}
	for _, from := range hosts {
		for i, protocol := range []string{"TCP", "UDP"} {
			want := map[string]string{"TCP": other, "UDP": testbed.Dropped}[protocol]
			if from == l.Clients[1] {
				want = "pod-0"
			}
			for addr, want := range map[string]string{
				fmt.Sprintf("203.0.113.%d:80", 30+i): want, fmt.Sprintf("10.96.0.%d:80", 30+i): "pod-0",
				fmt.Sprintf("%s:%d", l.Node.Addr4, 30080+i): "pod-0",
			} {
				if got := askOnce(from, protocol, netip.MustParseAddrPort(addr)); got != want {
					l.T.Errorf("%s %s from %s: %s, want %s", protocol, addr, from, got, want)
				}
			}
		}
	}
}

// TestHealthCheckNodePort: the load balancer is told of local endpoints.
func TestHealthCheckNodePort(t *testing.T) {
	t.Parallel()
	run := filepath.Join(t.TempDir(), "run")
	l := looker{lab.New(t, testbed.Config{Pods: 2, RemotePods: 1}), filepath.Join(run, "api.sock")}
	web := loadBalancer("web", lab.WebAddr, "TCP", 30080, "  externalTrafficPolicy: Local\n  healthCheckNodePort: 32000\n", "203.0.113.80")
	endpoints := func(nodes ...string) string {
		s := strings.Replace(testbed.SliceManifest("web", 1, 8080, "TCP"), "[]", "", 1)
		for i, node := range nodes {
			s += fmt.Sprintf("- addresses: [10.244.1.%d]\n  nodeName: %s\n", 10+i, node)
		}
		return s
	}
	l.Write("web.yaml", web, endpoints("node", "node", "remote-node"))
	l.Start("--hostname-override", "node", "--handover-socket", filepath.Join(run, "handover.sock"))
	l.Eventually("the API is served", func() bool { _, err := os.Stat(l.socket); return err == nil })
	check := func() (int, string) { return l.Get("http://" + l.Node.Addr4.String() + ":32000/healthz") }
	if code, body := check(); code != http.StatusOK || !strings.Contains(body, `"localEndpoints":2`) || !strings.Contains(body, `"name":"web"`) {
		t.Errorf("with two endpoints here: %d, %s", code, body)
	}
	l.run("drain", "10.244.1.10")
	if code, body := check(); code != http.StatusOK || !strings.Contains(body, `"localEndpoints":1`) {
		t.Errorf("with one of two drained: %d, %s", code, body)
	}
	l.run("drain", "10.244.1.11", "--force")
	if code, body := check(); code != http.StatusServiceUnavailable || !strings.Contains(body, `"localEndpoints":0`) {
		t.Errorf("with both drained: %d, %s", code, body)
	}
	l.run("drain", "10.244.1.11", "--undo")
	if code, body := check(); code != http.StatusOK || !strings.Contains(body, `"localEndpoints":1`) {
		t.Errorf("with one drained no more: %d, %s", code, body)
	}
	l.Write("web.yaml", web, endpoints("remote-node"))
	l.Eventually("the health check fails", func() bool { code, _ := check(); return code == http.StatusServiceUnavailable })
	l.Write("web.yaml", testbed.ServiceManifest("web", lab.WebAddr, "TCP", ""), endpoints("node"))
	l.Eventually("the health check is gone", func() bool { code, _ := check(); return code == 0 })
}

// TestServiceProxyName: ours are the Services that say so, and no others.
func TestServiceProxyName(t *testing.T) {
	t.Parallel()
	l := lab.New(t, testbed.Config{Pods: 1})
	testbed.Keep(t)(l.Pods[0].WhoTCP(":8080"))
	labelled := strings.Replace(testbed.ServiceManifest("ours", "10.96.0.40:80", "TCP", ""), "metadata:\n", "metadata:\n  labels:\n    service.kubernetes.io/service-proxy-name: sluice\n", 1)
	l.Write("a.yaml", labelled, testbed.SliceManifest("ours", 1, 8080, "TCP", testbed.Addrs(l.Pods...)...))
	l.Write("b.yaml", testbed.ServiceManifest("theirs", "10.96.0.41:80", "TCP", ""),
		testbed.SliceManifest("theirs", 1, 8080, "TCP", testbed.Addrs(l.Pods...)...))
	for _, test := range []struct{ flag, served, not string }{{"sluice", "10.96.0.40:80", "10.96.0.41:80"}, {"", "10.96.0.41:80", "10.96.0.40:80"}} {
		l.Start("--service-proxy-name", test.flag)
		if got := askOnce(l.Client, "TCP", netip.MustParseAddrPort(test.served)); got != "pod-0" {
			t.Errorf("with name %q, %s: %s, want pod-0", test.flag, test.served, got)
		}
		if got := askOnce(l.Client, "TCP", netip.MustParseAddrPort(test.not)); got != testbed.Dropped {
			t.Errorf("with name %q, %s: %s, want silence", test.flag, test.not, got)
		}
		l.Signal(syscall.SIGTERM)
		l.Wait()
	}
}

// TestNothingIsDisturbed: more addresses and affinity come to a live Service, and
// go again; its open connection and its flow do not notice.
func TestNothingIsDisturbed(t *testing.T) {
	t.Parallel()
	l := lab.New(t, testbed.Config{Pods: 3})
	for _, pod := range l.Pods {
		testbed.Keep(t)(pod.EchoTCP(":8080"))
	}
	l.ServeDNS()
	publish := func(more, ingress string) {
		l.Write("web.yaml", loadBalancer("web", lab.WebAddr, "TCP", 30080, more, ingress),
			testbed.SliceManifest("web", 1, 8080, "TCP", testbed.Addrs(l.Pods...)...))
		l.Write("dns.yaml", loadBalancer("dns", lab.DNSAddr, "UDP", 30053, more, ingress),
			testbed.SliceManifest("dns", 1, 5353, "UDP", testbed.Addrs(l.Pods...)...))
	}
	publish("", "")
	l.Start("--udp-timeout", "1h")
	held := l.Hold()
	flow := testbed.NewUDPClient(t, l.Client, lab.DNSAddr)
	home, err := flow.Ask([]byte("?"), testbed.Patience)
	if err != nil || home == "" {
		t.Fatal(home, err)
	}
	for i, change := range []struct{ more, ingress string }{
		{"", "203.0.113.80"},
		{"  externalIPs: [198.51.100.80]\n", "203.0.113.80"},
		{"  externalIPs: [198.51.100.80]\n  sessionAffinity: ClientIP\n", "203.0.113.80"},
		{"  externalTrafficPolicy: Local\n", ""},
		{"", ""},
	} {
		l.Apply(func() { publish(change.more, change.ingress) })
		for range 20 {
			held.Echoes()
			if name, err := flow.Ask([]byte("?"), testbed.Patience); err != nil || name != home {
				t.Fatalf("change %d: the flow was answered by %q, %v; want %s", i, name, err, home)
			}
		}
	}
	if n := l.Metric(`sluice_connections_total{protocol="UDP",result="established"}`); n != 1 {
		t.Errorf("%v flows were made, want the one", n)
	}
}

// TestRulesAreRepaired: whatever others do to our rules is found and put right
// within a sync period, and counted; what is theirs stays.
func TestRulesAreRepaired(t *testing.T) {
	testbed.VM(t)
	t.Parallel()
	ours := []string{
		"iptables -t nat -F",
		// Rules of others may stand before ours.
		"iptables -t nat -N THEIRS; iptables -t nat -I PREROUTING -j THEIRS; iptables -t nat -I OUTPUT -j THEIRS; " +
			"iptables -F; iptables -t mangle -F",
	}
	for mode, damages := range map[string][]string{
		"userspace": append([]string{
			"iptables -t nat -F; iptables -F; iptables -t mangle -F; ipset destroy SLUICE4-TCP || ipset flush SLUICE4-TCP",
			"ipset flush SLUICE4-TCP",
			"ipset add SLUICE4-TCP 192.0.2.99,tcp:99",
		}, ours...),
		"iptables": append([]string{
			"iptables -t nat -F SLUICE-SERVICES",
			"iptables -t nat -D POSTROUTING 1; iptables -t nat -F SLUICE-MARK-MASQ",
		}, ours...),
		"nftables": append([]string{
			"nft delete table ip sluice-services",
			"nft flush table ip sluice-services",
			"nft flush map ip sluice-services services",
		}, ours...),
		"ipvs": append([]string{
			"ipvsadm -C",
			"ip route flush table local proto 83",
			"ipset flush SLUICE-IPVS4-FRONTENDS",
			"ipvsadm -E -t 10.96.0.80:80 -s sh",
		}, ours...),
	} {
		t.Run(mode, func(t *testing.T) {
			testRepairs(t, damages, "--iptables-sync-period", "200ms", "--ipvs-sync-period", "200ms", "--proxy-mode", mode,
				"--packet-filter", "iptables")
		})
	}
	t.Run("steered by nftables", func(t *testing.T) { // noticed without looking from time to time
		testRepairs(t, []string{
			"nft delete table ip sluice-steering",
			"nft flush ruleset",
			"nft delete element ip sluice-steering steer '{ 10.96.0.80 . tcp . 80 }'",
			"nft add rule ip6 sluice-steering frontends drop",
		}, "--iptables-sync-period", "1h", "--packet-filter", "nftables")
	})
	t.Run("forwarded by nftables", func(t *testing.T) {
		testRepairs(t, []string{
			"nft delete element ip sluice-services services '{ 10.96.0.80 . tcp . 80 }'",
			"nft flush chain ip sluice-services prerouting",
			"nft delete table ip sluice-services",
			"nft flush ruleset",
		}, "--iptables-sync-period", "1h", "--packet-filter", "nftables", "--proxy-mode", "nftables")
	})
	t.Run("chosen by queue", func(t *testing.T) {
		testRepairs(t, []string{
			"nft delete element ip sluice-queued asked '{ 10.96.0.80 . tcp . 80 }'",
			"nft flush map ip sluice-queued numbered",
			"nft delete table ip sluice-queued",
		}, "--iptables-sync-period", "1h", "--packet-filter", "nftables", "--proxy-mode", "queue")
	})
}

func testRepairs(t *testing.T, damages []string, args ...string) {
	t.Parallel()
	if slices.Contains(args, "ipvs") {
		lab.NeedMode(t, "ipvs")
	}
	l := lab.New(t, testbed.Config{})
	l.ServeWeb()
	l.ServeDNS()
	l.Start(args...)
	want := l.Traces()
	sh := func(script string) {
		t.Helper()
		if out, err := l.Node.Command(t.Context(), "sh", "-ec", script).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v, %s", script, err, out)
		}
	}
	repairs := l.Metric("sluice_rules_repaired_total")
	for _, damage := range damages {
		began := time.Now()
		sh(damage)
		repairs++
		l.Eventually("after "+damage+" the rules are repaired", func() bool { return l.Metric("sluice_rules_repaired_total") >= repairs })
		t.Logf("%s: repaired within %v", damage, time.Since(began))
		for _, from := range []*testbed.Host{l.Client, l.Node, l.Pods[0]} {
			if name, err := from.Who(lab.WebAddr); err != nil || name == "" {
				t.Errorf("after %s: TCP from %s: %q, %v", damage, from, name, err)
			}
			if name, err := from.TryAsk("udp", lab.DNSAddr, testbed.Patience); err != nil || name == "" {
				t.Errorf("after %s: UDP from %s: %q, %v", damage, from, name, err)
			}
		}
		repairs = l.Metric("sluice_rules_repaired_total")
	}
	if strings.Contains(want, "SLUICE") {
		sh("iptables -t nat -D PREROUTING -j THEIRS; iptables -t nat -D OUTPUT -j THEIRS; iptables -t nat -X THEIRS")
	}
	sorted := func(s string) []string { return slices.Sorted(strings.Lines(s)) } // jumps of two owners may have changed places
	if got := l.Traces(); !slices.Equal(sorted(got), sorted(want)) {
		t.Errorf("after all repairs:\n%s\nat the start:\n%s", got, want)
	}
}

// TestOldModeIsReplaced: the chains of kube-proxy's old userspace mode go at the
// start, everybody else's stay.
func TestOldModeIsReplaced(t *testing.T) {
	t.Parallel()
	l := lab.New(t, testbed.Config{Pods: 1})
	for _, args := range [][]string{
		{"-t", "nat", "-N", "KUBE-PORTALS-CONTAINER"}, {"-t", "nat", "-I", "PREROUTING", "-j", "KUBE-PORTALS-CONTAINER"},
		{"-t", "nat", "-A", "KUBE-PORTALS-CONTAINER", "-d", "10.96.0.80", "-p", "tcp", "--dport", "80", "-j", "REDIRECT", "--to-ports", "9"},
		{"-t", "nat", "-N", "KUBE-SERVICES"}, {"-t", "nat", "-A", "PREROUTING", "-j", "KUBE-SERVICES"},
	} {
		l.Output("iptables", args...)
	}
	l.ServeWeb()
	l.Start()
	rules := l.Output("iptables-save")
	if strings.Contains(rules, "KUBE-PORTALS") || !strings.Contains(rules, "-A PREROUTING -j KUBE-SERVICES") {
		t.Errorf("rules after the start:\n%s", rules)
	}
	if name, err := l.Client.Who(lab.WebAddr); err != nil || name != "pod-0" {
		t.Errorf("answer %q, %v", name, err)
	}
}

// TestStaleUDPEntries: a client that asked before the Service existed, and one whose
// Service goes and comes back, are not kept on the path they had.
func TestStaleUDPEntries(t *testing.T) {
	t.Parallel()
	l := lab.New(t, testbed.Config{})
	l.Start()
	c := testbed.NewUDPClient(t, l.Client, lab.DNSAddr)
	if name, err := c.Ask([]byte("?"), 200*time.Millisecond); name != "" || err != nil && !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatalf("before there is a Service: %q, %v", name, err)
	}
	l.ServeDNS()
	works := func(want bool) {
		t.Helper()
		l.Eventually(fmt.Sprintf("the old client is answered: %v", want), func() bool {
			name, _ := c.Ask([]byte("?"), 100*time.Millisecond)
			return (name != "") == want
		})
	}
	works(true)
	l.Write("dns.yaml", testbed.ServiceManifest("dns", lab.DNSAddr, "UDP", ""), testbed.SliceManifest("dns", 1, 5353, "UDP"))
	works(false)
	l.Publish("dns", lab.DNSAddr, "UDP", "", 5353, l.Pods...)
	works(true)
}
