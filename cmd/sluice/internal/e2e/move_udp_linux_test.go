package e2e

import (
	"strings"
	"sync"
	"testing"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// TestMoveUDP: no datagram of a flow that has been answered is lost when its Service moves between paths, neither by
// the cluster IP nor by a node port, and a new client is served by the new path. What a flow has left in user space is
// closed when it ends.
func TestMoveUDP(t *testing.T) {
	testbed.Race(t)
	t.Parallel()
	m := &moving{Lab: lab.New(t, testbed.Config{}), stop: make(chan struct{})}
	for _, pod := range m.Pods {
		testbed.Keep(t)(pod.EchoUDP(pod.Addr4.String() + ":5353"))
	}
	s := &lab.Movable{Name: "dns", Addr: "10.96.0.10:53", Protocol: "UDP", Port: 5353, NodePort: 30011}
	s.Path = "userspace"
	m.put(s)
	m.Write("node.yaml", nodeManifest)
	m.Start("--hostname-override", "node", "--iptables-min-sync-period", "0s", "--udp-timeout", "250ms")
	var clients []testbed.UDPClient
	var asking sync.WaitGroup
	for range 4 {
		for _, addr := range []string{s.Addr, m.Node.Addr4.String() + ":30011"} {
			clients = append(clients, testbed.NewUDPClient(t, m.Client, addr))
		}
	}
	for i, c := range clients {
		if text, err := c.Insist(); err != nil {
			t.Fatalf("client %d: %q, %v", i, text, err)
		}
		asking.Go(func() {
			for !m.over() {
				if text, err := c.Ask([]byte("again"), testbed.Patience); text != "again" || err != nil {
					t.Errorf("client %d lost a datagram on the way to %s: %q, %v", i, s.Path, text, err)
					return
				}
				pause()
			}
		})
	}
	paths := []string{"nftables", "userspace", "queue", "nftables", "queue", "iptables", "userspace", "nftables"}
	for n, path := range paths {
		s.Path = path
		m.put(s)
		m.Eventually("the Service is on path "+path, func() bool {
			return strings.Count(m.Log.String(), "moving a Service to another data path") > n &&
				m.Metric(`sluice_service_data_path{path="`+path+`"}`) == 1
		})
		fresh := testbed.NewUDPClient(t, m.Client, s.Addr)
		if text, err := fresh.Ask([]byte("new"), testbed.Patience); text != "new" || err != nil {
			t.Errorf("a new client on path %s: %q, %v", path, text, err)
		}
	}
	close(m.stop)
	asking.Wait()
	m.Eventually("no flow is left in user space", func() bool {
		return m.Metric(`sluice_active_connections{protocol="UDP"}`) == 0
	})
}
