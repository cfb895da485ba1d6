package e2e

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// TestUDPFlood: while spoofed sources ask two Services for more flows than there are places, TCP is served, flows in
// use lose nothing, and the node's own programs find ports.
func TestUDPFlood(t *testing.T) {
	testbed.Race(t)
	l := lab.New(t, testbed.Config{})
	l.ServeWeb()
	l.ServeDNS()
	testbed.Keep(t)(l.Pods[0].EchoUDP(l.Pods[0].Addr4.String() + ":5354"))
	var flooded []netip.AddrPort
	for i := range 2 {
		name, addr := fmt.Sprint("flooded-", i), fmt.Sprintf("10.96.7.%d:53", i)
		l.Publish(name, addr, "UDP", "", 5354, l.Pods[0])
		flooded = append(flooded, netip.MustParseAddrPort(addr))
	}
	const ports, tcp, own = 4000, 400, 300
	testbed.Check(t, l.Node.Sysctl("net.ipv4.ip_local_port_range", fmt.Sprint("40000 ", 40000+ports-1)))
	l.Start("--udp-timeout", "5s")

	var clients []testbed.UDPClient
	ask := func() {
		t.Helper()
		for i, c := range clients {
			if name, err := c.Ask([]byte("?"), testbed.Patience); err != nil || name == "" {
				t.Fatalf("client %d: answer %q, %v", i, name, err)
			}
		}
	}
	for range 20 {
		clients = append(clients, testbed.NewUDPClient(t, l.Client, lab.DNSAddr))
	}
	for range 3 { // a flow is in use when something has followed an answer
		ask()
	}
	created := l.Metric(`sluice_connections_total{protocol="UDP",result="established"}`)
	if created != float64(len(clients)) {
		t.Fatalf("%v flows for %d clients", created, len(clients))
	}
	stop := l.Flood(l.Client, flooded...)
	defer stop()
	l.Eventually("the flood bites", func() bool {
		return l.Metric(`sluice_ended_connections_total{protocol="UDP",reason="service_share"}`) > ports
	})
	var holding []net.Conn
	for i := range own {
		c, err := l.Node.Dial(t.Context(), "udp", l.Pods[0].Addr4.String()+":5353")
		if err != nil {
			t.Fatalf("socket %d of the node itself: %v", i, err)
		}
		holding = append(holding, c)
	}
	for i := range tcp {
		if name, err := l.Client.Who(lab.WebAddr); err != nil || name == "" {
			t.Fatalf("TCP connection %d: answer %q, %v", i, name, err)
		}
		if i%20 == 0 {
			ask()
		}
	}
	if n := l.Metric(`sluice_active_connections{protocol="UDP"}`); n > ports/2 {
		t.Errorf("%v flows are open, want %d at most", n, ports/2)
	}
	for _, c := range holding {
		testbed.Check(t, c.Close())
	}
	stop()
	ask()
	if n := l.Metric(`sluice_dropped_packets_total{protocol="UDP",reason="no_port"}`); n != 0 {
		t.Errorf("%v datagrams were dropped for want of a port", n)
	}
}
