package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// TestMoveAffinity: a client of a Service with affinity stays where it is while its
// Service moves, but for moves to ipvs, which takes no client from elsewhere.
func TestMoveAffinity(t *testing.T) {
	t.Parallel()
	testMoveAffinity(t, "nftables", "userspace", "iptables", "nftables", "queue", "iptables", "queue", "userspace", "queue",
		"nftables", "iptables", "userspace", "nftables")
}

// TestMoveAffinityIPVS has it stay on the way from ipvs to the others.
func TestMoveAffinityIPVS(t *testing.T) {
	testbed.VM(t)
	lab.NeedMode(t, "ipvs")
	testMoveAffinity(t, "nftables", "ipvs", "nftables", "ipvs", "iptables", "ipvs", "userspace", "iptables")
}

func testMoveAffinity(t *testing.T, paths ...string) {
	m := &moving{Lab: lab.New(t, testbed.Config{Pods: 5})}
	s := &lab.Movable{Name: "stay", Addr: "10.96.0.80:80", Protocol: "TCP", Port: 8080, NodePort: 30080, More: "  sessionAffinity: ClientIP\n"}
	for _, pod := range m.Pods {
		testbed.Keep(t)(pod.WhoTCP(":8080"))
	}
	m.Write("node.yaml", nodeManifest)
	m.put(s)
	m.Start("--hostname-override", "node")
	clients := map[*testbed.Host]string{m.Client: "", m.Pods[0]: "", m.Node: ""}
	ask := func(from *testbed.Host) string {
		name, err := from.Who(s.Addr)
		testbed.Check(t, err)
		return name
	}
	for from := range clients {
		clients[from] = ask(from)
	}
	for n, path := range paths {
		s.Path = path
		m.put(s)
		m.Eventually(fmt.Sprintf("move %d, to %s", n, path), func() bool {
			return m.Metric(fmt.Sprintf("sluice_service_data_path{path=%q}", path)) == 1
		})
		for from, was := range clients {
			is := ask(from)
			if is != was && path != "ipvs" {
				t.Errorf("move %d, to %s: %s was at %s and is at %s", n, path, from.Name, was, is)
			}
			clients[from] = is
		}
	}
	if warned := strings.Contains(m.Log.String(), "may get other endpoints"); warned != strings.Contains(fmt.Sprint(paths), "ipvs") {
		t.Errorf("that clients may get other endpoints is said: %v", warned)
	}
}
