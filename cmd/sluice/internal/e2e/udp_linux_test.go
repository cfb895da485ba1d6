package e2e

import (
	"bytes"
	"fmt"
	"io"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// TestThousandClients: 1,000 clients at once, each answered by one endpoint while
// it is active, all endpoints used alike, and free to move after the idle timeout.
func TestThousandClients(t *testing.T) {
	testbed.Race(t)
	testbed.Timed(t)
	clients := 1000
	if testing.Short() {
		clients = 200
	}
	l := lab.New(t, testbed.Config{})
	l.ServeDNS()
	const idle = 2 * time.Second
	l.Start("--udp-timeout", idle.String())
	socks := make([]testbed.UDPClient, clients)
	for i := range socks {
		socks[i] = testbed.NewUDPClient(t, l.Client, lab.DNSAddr)
	}
	names := make([]string, clients)
	var wg sync.WaitGroup
	for i, c := range socks {
		wg.Go(func() {
			for range 3 {
				name, err := c.Insist()
				if err != nil {
					t.Errorf("client %d: %v", i, err)
					return
				}
				if names[i] == "" {
					names[i] = name
				} else if names[i] != name {
					t.Errorf("client %d was answered by %s and then by %s while it was active", i, names[i], name)
				}
			}
		})
	}
	wg.Wait()
	count := map[string]int{}
	for _, name := range names {
		count[name]++
	}
	for _, pod := range l.Pods {
		if got := count[pod.Name]; got < clients/3-1 || got > clients/3+1 {
			t.Errorf("clients were spread as %v, want a third each", count)
			break
		}
	}
	if got := l.Metric(`sluice_active_connections{protocol="UDP"}`); got != float64(clients) {
		t.Errorf("%v flows are open, want %d", got, clients)
	}
	l.Eventually("the idle flows have ended", func() bool {
		return l.Metric(`sluice_active_connections{protocol="UDP"}`) == 0
	})
	moved := 0
	for i, c := range socks {
		name, err := c.Insist()
		if err != nil {
			t.Fatalf("client %d after its flow's end: %v", i, err)
		}
		if name != names[i] {
			moved++
		}
	}
	if moved == 0 {
		t.Error("no client moved after its idle timeout")
	}
}

// TestLargestDatagram: 65,507 bytes there and back, from everywhere.
func TestLargestDatagram(t *testing.T) {
	t.Parallel()
	l := lab.New(t, testbed.Config{Pods: 2})
	testbed.Keep(t)(l.Pods[1].EchoUDP(l.Pods[1].Addr4.String() + ":5353"))
	l.Publish("dns", lab.DNSAddr, "UDP", "", 5353, l.Pods[1])
	l.Start("--udp-timeout", "5s")
	msg, err := io.ReadAll(io.LimitReader(testbed.Stream(3), 65507))
	testbed.Check(t, err)
	for _, from := range []*testbed.Host{l.Client, l.Node, l.Pods[0], l.Pods[1]} {
		c := testbed.NewUDPClient(t, from, lab.DNSAddr)
		for _, size := range []int{65507, 0, 1, 4097} {
			got, err := c.Ask(msg[:size], testbed.Patience)
			if err != nil || !bytes.Equal([]byte(got), msg[:size]) {
				t.Errorf("from %s: %d bytes came back as %d, %v", from, size, len(got), err)
			}
		}
	}
}

// TestEndpointGoesUnderTraffic: the flows of an endpoint that is taken out of the
// manifest go on elsewhere, without a pause that a client would call an outage.
func TestEndpointGoesUnderTraffic(t *testing.T) {
	testbed.Race(t)
	l := lab.New(t, testbed.Config{})
	l.ServeDNS()
	l.Start("--udp-timeout", "1h") // nothing but the removal moves a flow
	const clients = 30
	socks := make([]testbed.UDPClient, clients)
	var there []testbed.UDPClient
	for i := range socks {
		socks[i] = testbed.NewUDPClient(t, l.Client, lab.DNSAddr)
		name, err := socks[i].Ask([]byte("?"), testbed.Patience)
		testbed.Check(t, err)
		if name == "pod-1" {
			there = append(there, socks[i])
		}
	}
	if len(there) != clients/3 {
		t.Fatalf("%d flows are at pod-1, want %d", len(there), clients/3)
	}
	if err := l.Pods[1].Blackhole(true); err != nil { // whoever stays gets no answer
		t.Fatal(err)
	}
	l.Publish("dns", lab.DNSAddr, "UDP", "", 5353, l.Pods[0], l.Pods[2])
	written := time.Now()
	for i, c := range there {
		var name string
		l.Eventually(fmt.Sprintf("flow %d has moved", i), func() (ok bool) {
			var err error
			if name, err = c.Ask([]byte("?"), 10*time.Millisecond); err != nil {
				t.Fatal(err)
			}
			return name != ""
		})
		if name == "pod-1" {
			t.Errorf("flow %d is still at the removed endpoint", i)
		}
	}
	t.Logf("all %d flows had moved %v after the file was written", len(there), time.Since(written))
	if moved := l.Metric(`sluice_ended_connections_total{protocol="UDP",reason="moved"}`); moved != float64(len(there)) {
		t.Errorf("%v flows moved, want %d", moved, len(there))
	}
}

// TestRefusingUDPEndpoint: an endpoint that answers with ICMP is left at once.
func TestRefusingUDPEndpoint(t *testing.T) {
	t.Parallel()
	l := lab.New(t, testbed.Config{})
	servers := l.ServeDNS()
	l.Start("--udp-timeout", "1h")
	testbed.Check(t, servers[0].Close())
	for i := range 9 {
		c := testbed.NewUDPClient(t, l.Client, lab.DNSAddr)
		for range 3 {
			name, err := c.Ask([]byte("?"), testbed.Patience)
			if err != nil || name == "" || name == "pod-0" {
				t.Errorf("client %d: answer %q, %v", i, name, err)
			}
		}
	}
	if n := l.Metric(`sluice_service_failures_total{protocol="UDP",service_name="dns",service_namespace="default",service_port=""}`); n == 0 {
		t.Error("no refusal was met: the test tests nothing")
	}
}

// TestOneAddressOfTwo: a node with two addresses, whichever it is told to bind to,
// answers from the address that was asked, which a connected client checks.
func TestOneAddressOfTwo(t *testing.T) {
	t.Parallel()
	l := lab.New(t, testbed.Config{})
	l.ServeWeb()
	l.ServeDNS()
	for _, bind := range []string{"0.0.0.0", l.Node.Addr4.String(), l.Node.Alt4.String()} {
		l.Start("--bind-address", bind)
		for _, from := range []*testbed.Host{l.Client, l.Node, l.Pods[0]} {
			if name, err := from.TryAsk("udp", lab.DNSAddr, testbed.Patience); err != nil || name == "" {
				t.Errorf("bound to %s, UDP from %s: answer %q, %v", bind, from, name, err)
			}
			if name, err := from.Who(lab.WebAddr); err != nil || name == "" {
				t.Errorf("bound to %s, TCP from %s: answer %q, %v", bind, from, name, err)
			}
		}
		l.Signal(syscall.SIGTERM)
		if code := l.Wait(); code != 0 {
			t.Fatalf("exit code %d", code)
		}
	}
}

// TestAffinity: a client stays with its endpoint over connections and loops, and
// moves when that goes.
func TestAffinity(t *testing.T) {
	t.Parallel()
	l := lab.New(t, testbed.Config{Clients: 3})
	l.ServeWeb()
	sticky := "  sessionAffinity: ClientIP\n"
	l.Write("web.yaml", testbed.ServiceManifest("web", lab.WebAddr, "TCP", sticky),
		testbed.SliceManifest("web", 1, 8080, "TCP", testbed.Addrs(l.Pods...)...))
	l.Start()
	home := map[*testbed.Host]string{}
	for range 20 {
		for _, from := range l.Clients {
			name, err := from.Who(lab.WebAddr)
			testbed.Check(t, err)
			if home[from] == "" {
				home[from] = name
			}
			if home[from] != name {
				t.Errorf("%s was sent to %s and then to %s", from, home[from], name)
			}
		}
	}
	var gone *testbed.Host
	for _, pod := range l.Pods {
		if pod.Name == home[l.Client] {
			gone = pod
		}
	}
	var left []string
	for _, pod := range l.Pods {
		if pod != gone {
			left = append(left, pod.Addr4.String())
		}
	}
	l.Write("web.yaml", testbed.ServiceManifest("web", lab.WebAddr, "TCP", sticky), testbed.SliceManifest("web", 1, 8080, "TCP", left...))
	l.Eventually("the change is in force", func() bool { return l.Metric("sluice_endpoints") == 2 })
	first, err := l.Client.Who(lab.WebAddr)
	if err != nil || first == gone.Name {
		t.Fatalf("after its endpoint has gone the client got %q, %v", first, err)
	}
	for range 10 {
		if name, err := l.Client.Who(lab.WebAddr); err != nil || name != first {
			t.Errorf("the client got %q after %q, %v", name, first, err)
		}
	}
}
