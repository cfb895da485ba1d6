package e2e

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// TestShortForm: what short forms say is served, at an address of the node and at all of them, and so is a Service
// that has no cluster IP.
func TestShortForm(t *testing.T) {
	testbed.VM(t)
	t.Parallel()
	lab.EachMode(t, []string{"userspace", "queue", "nftables", "iptables", "ipvs"}, testShortForm)
}

func testShortForm(t *testing.T, mode string) {
	l := lab.New(t, testbed.Config{})
	l.ServeWeb()
	for _, pod := range l.Pods {
		testbed.Keep(t)(pod.WhoUDP(pod.Addr4.String() + ":8080"))
	}
	var endpoints []string
	for _, pod := range l.Pods {
		endpoints = append(endpoints, pod.Addr4.String()+":8080")
	}
	list, node := strings.Join(endpoints, ", "), l.Node.Addr4
	l.Write("short.yaml",
		fmt.Sprintf("listen: tcp://%s:5432\nendpoints: [%s]\npolicies: {scheduler: rr}\n", node, list),
		fmt.Sprintf("listen: tcp://:5433\nendpoints: [%s]\n", list),
		fmt.Sprintf("listen: udp://:5434\nendpoints: [%s]\n", list),
		"apiVersion: v1\nkind: Service\nmetadata: {name: external}\n"+
			"spec: {externalIPs: [203.0.113.7], ports: [{port: 80}]}\n",
		testbed.SliceManifest("external", 1, 8080, "TCP", testbed.Addrs(l.Pods...)...))
	l.Start("--proxy-mode", mode)
	for _, addr := range []string{node.String() + ":5432", node.String() + ":5433", "203.0.113.7:80"} {
		if name, err := l.Client.Who(addr); err != nil || !strings.HasPrefix(name, "pod-") {
			t.Errorf("TCP %s: %q, %v", addr, name, err)
		}
	}
	udp := netip.AddrPortFrom(node, 5434)
	if got := askOnce(l.Client, "UDP", udp); !strings.HasPrefix(got, "pod-") {
		t.Errorf("UDP %s: %s", udp, got)
	}
	if log := l.Log.String(); strings.Contains(log, "ERROR") {
		t.Errorf("the log has errors:\n%s", log)
	}
}
