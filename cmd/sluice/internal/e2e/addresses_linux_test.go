package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// untouched wants the node to have no rule, no set and no table.
func untouched(l *lab.Lab) {
	l.T.Helper()
	for _, command := range [][]string{{"iptables-save"}, {"ip6tables-save"}, {"iptables-legacy-save"}, {"ip6tables-legacy-save"}, {"ipset", "save"}} {
		if out := lab.Counters.ReplaceAllString(l.Output(command[0], command[1:]...), ""); strings.TrimSpace(out) != "" {
			l.T.Errorf("%s prints:\n%s", strings.Join(command, " "), out)
		}
	}
}

// holds returns which addresses of Services the node has on an interface.
func holds(l *lab.Lab) (out []string) {
	l.T.Helper()
	for _, line := range strings.Split(l.Output("ip", "-o", "address", "show"), "\n") {
		fields := strings.Fields(line)
		if len(fields) < 4 {
			continue
		}
		p, err := netip.ParsePrefix(fields[3])
		if err != nil {
			l.T.Fatal(err)
		}
		for _, services := range []string{"10.96.0.0/12", "198.51.100.0/24", "203.0.113.0/24", "2001:db8:96::/48"} {
			if netip.MustParsePrefix(services).Contains(p.Addr()) {
				out = append(out, p.Addr().String())
			}
		}
	}
	slices.Sort(out)
	return out
}

// TestAddressesLiveChange: Services come, change and go; the address of one is there as
// long as any port of it, and its clients are refused when it has no endpoint.
func TestAddressesLiveChange(t *testing.T) {
	t.Parallel()
	l := lab.New(t, testbed.Config{Pods: 2}).WinUserspace()
	for _, pod := range l.Pods {
		testbed.Keep(t)(pod.WhoTCP(":8080"))
		testbed.Keep(t)(pod.WhoUDP(pod.Addr4.String() + ":8080"))
	}
	answers := func(protocol, addr string, want ...string) {
		t.Helper()
		for _, host := range []*testbed.Host{l.Client, l.Node, l.Pods[1]} {
			if got := askOnce(host, protocol, netip.MustParseAddrPort(addr)); !slices.Contains(want, got) {
				t.Errorf("%s %s asked from the %s: %q, want %v", protocol, addr, host, got, want)
			}
		}
	}
	two := func(ports ...string) string { // of the Service with two ports
		s := "apiVersion: v1\nkind: Service\nmetadata:\n  name: two\nspec:\n  clusterIP: 10.96.0.22\n  ports:\n"
		for i, p := range ports {
			port, protocol, _ := strings.Cut(p, "/")
			s += fmt.Sprintf("  - {name: p%d, port: %s, protocol: %s, targetPort: 8080}\n", i, port, protocol)
		}
		return s
	}
	twoSlice := "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: two-1\n  labels:\n    kubernetes.io/service-name: two\n" +
		"addressType: IPv4\nports:\n- {name: p0, port: 8080, protocol: TCP}\n- {name: p1, port: 8080, protocol: UDP}\nendpoints:\n- addresses: [" + l.Pods[0].Addr4.String() + "]\n"
	l.Write("two.yaml", two("80/TCP", "53/UDP"), twoSlice)
	l.Start()
	answers("TCP", "10.96.0.22:80", "pod-0")
	answers("UDP", "10.96.0.22:53", "pod-0")
	answers("TCP", "10.96.0.22:81", "refused")

	change := func(name string, docs ...string) {
		t.Helper()
		l.Apply(func() { l.Write(name, docs...) })
	}
	change("two.yaml", two("80/TCP"), twoSlice) // one of two ports goes
	answers("TCP", "10.96.0.22:80", "pod-0")
	answers("UDP", "10.96.0.22:53", "refused")
	change("web.yaml", testbed.ServiceManifest("web", lab.WebAddr, "TCP", ""),
		testbed.SliceManifest("web", 1, 8080, "TCP", testbed.Addrs(l.Pods...)...))
	answers("TCP", lab.WebAddr, "pod-0", "pod-1")
	change("web.yaml", testbed.ServiceManifest("web", lab.WebAddr, "TCP", ""), testbed.SliceManifest("web", 1, 8080, "TCP"))
	answers("TCP", lab.WebAddr, "refused")
	if got, want := holds(l), []string{"10.96.0.22", "10.96.0.80"}; !slices.Equal(got, want) {
		t.Errorf("the node holds %v, want %v", got, want)
	}
	change("two.yaml")
	if got, want := holds(l), []string{"10.96.0.80"}; !slices.Equal(got, want) {
		t.Errorf("the node holds %v, want %v", got, want)
	}
	untouched(l)
	for _, family := range []string{"IPv4", "IPv6"} { // of probes and dashboards
		name := fmt.Sprintf("kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family=%q}", family)
		if got := l.Metric(name); got < 5 {
			t.Errorf("%s = %v, want one for each change", name, got)
		}
		if _, body := l.Get("http://127.0.0.1:10256/healthz"); !strings.Contains(body, family) {
			t.Errorf("/healthz does not tell of %s: %s", family, body)
		}
	}
}

// TestAddressesAfterCrash: SIGKILL and a start with other Services leave no address over
// and lose none; --cleanup removes all.
func TestAddressesAfterCrash(t *testing.T) {
	testbed.VM(t)
	t.Parallel()
	l := lab.New(t, testbed.Config{Pods: 1}).WinUserspace()
	testbed.Keep(t)(l.Pods[0].WhoTCP(":8080"))
	publish := func(ips ...string) {
		t.Helper()
		docs := []string{}
		for i, ip := range ips {
			name := fmt.Sprint("web-", i)
			docs = append(docs, testbed.ServiceManifest(name, ip+":80", "TCP", ""),
				testbed.SliceManifest(name, 1, 8080, "TCP", testbed.Addrs(l.Pods...)...))
		}
		l.Write("web.yaml", docs...)
	}
	l.Output("ip", "address", "add", "10.96.0.99/32", "dev", "lo") // another program's
	publish("10.96.0.1", "10.96.0.2")
	for _, end := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		l.Start()
		if os.Getenv("SLUICE_REQUIRE_DUMMY") == "1" && !strings.Contains(l.Output("ip", "-brief", "address"), "sluice0") {
			t.Error("there is no device of the program's own")
		}
		if got, want := holds(l), []string{"10.96.0.1", "10.96.0.2", "10.96.0.99"}; !slices.Equal(got, want) {
			t.Errorf("the node holds %v, want %v", got, want)
		}
		l.Signal(end)
		l.Wait()
	}
	if got := askOnce(l.Client, "TCP", netip.MustParseAddrPort("10.96.0.1:80")); got != testbed.Refused {
		t.Errorf("while nothing runs: %s, want a refusal by the host that has the address", got)
	}
	publish("10.96.0.2", "10.96.0.3")
	l.Start()
	if got, want := holds(l), []string{"10.96.0.2", "10.96.0.3", "10.96.0.99"}; !slices.Equal(got, want) {
		t.Errorf("after the crash and another start the node holds %v, want %v", got, want)
	}
	for _, addr := range []string{"10.96.0.2:80", "10.96.0.3:80"} {
		if got := askOnce(l.Client, "TCP", netip.MustParseAddrPort(addr)); got != "pod-0" {
			t.Errorf("%s: %s", addr, got)
		}
	}
	l.Signal(syscall.SIGKILL)
	l.Wait()
	for range 2 {
		if out, err := l.Command("--cleanup").CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("--cleanup = %v, %s", err, out)
		}
	}
	if got, want := holds(l), []string{"10.96.0.99"}; !slices.Equal(got, want) {
		t.Errorf("after --cleanup the node holds %v, want %v", got, want)
	}
	if out := l.Output("ip", "-brief", "link"); strings.Contains(out, "sluice0") {
		t.Errorf("after --cleanup there is still a device:\n%s", out)
	}
	untouched(l)
}

// TestAddressesAreRepaired: what somebody takes away is put back, and counted.
func TestAddressesAreRepaired(t *testing.T) {
	t.Parallel()
	l := lab.New(t, testbed.Config{Pods: 1}).WinUserspace()
	l.ServeWeb()
	l.Start("--iptables-sync-period", "200ms")
	device := strings.Fields(l.Output("ip", "-o", "address", "show", "to", lab.WebIP))[1]
	l.Output("ip", "address", "delete", lab.WebIP+"/32", "dev", device)
	l.Eventually("the address is there again", func() bool { return l.Metric("sluice_rules_repaired_total") == 1 })
	if got := askOnce(l.Client, "TCP", netip.MustParseAddrPort(lab.WebAddr)); got != "pod-0" {
		t.Errorf("after the repair: %s", got)
	}
}

// TestAddressOutlivesItsService: an open connection goes on when its Service goes, and
// the address after it.
func TestAddressOutlivesItsService(t *testing.T) {
	t.Parallel()
	l := lab.New(t, testbed.Config{Pods: 1}).WinUserspace()
	l.ServeEcho()
	l.Start("--iptables-sync-period", "200ms")
	held := l.Hold()
	held.Echoes()
	l.Write("web.yaml")
	l.Eventually("the Service is gone", func() bool {
		return askOnce(l.Client, "TCP", netip.MustParseAddrPort(lab.WebAddr)) == testbed.Refused
	})
	for range 20 {
		held.Echoes()
	}
	held.Close()
	l.Eventually("the address is gone", func() bool { return len(holds(l)) == 0 })
}

// TestAddressesSourceRanges: others are accepted and reset, or come to nothing.
func TestAddressesSourceRanges(t *testing.T) {
	t.Parallel()
	testSourceRanges(lab.New(t, testbed.Config{Clients: 2, Pods: 1}).WinUserspace(), testbed.Refused, true)
}
