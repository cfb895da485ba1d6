package e2e

import (
	"os"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/bench/testbed"
)

// TestUpgradeHoldsAddresses: in mode winuserspace the node holds the service addresses
// throughout, and their sockets cross; the last process takes back what its predecessors
// have added.
func TestUpgradeHoldsAddresses(t *testing.T) {
	t.Parallel()
	n := newLine(t, testbed.Config{})
	n.serveWeb()
	n.serveDNS()
	n.mode = "winuserspace"
	n.start("--udp-timeout", "10s")
	held := func() string { return n.output("ip", "-o", "addr", "show", "to", "10.96.0.0/16") }
	before := held()
	if strings.Count(before, "10.96.0.") != 2 {
		t.Fatalf("the node holds %q", before)
	}
	g := emptyLoad(n.lab)
	t.Cleanup(g.end)
	g.connect(n.Client, webAddr, 100)
	g.connect(n.Node, webAddr, 100)
	u := newClient(t, n.Client, dnsAddr)
	pod, err := u.insist()
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		n.mustUpgrade()
		if got, err := u.ask([]byte("?"), patience); err != nil || got != pod {
			t.Errorf("the UDP flow is answered by %q, %v; was %q", got, err, pod)
		}
		if now := held(); now != before {
			t.Errorf("the node holds %q, held %q before", now, before)
		}
	}
	g.end()
	t.Logf("%d connections", g.fresh.Load())
	if failed := g.failed.Load(); failed > 0 {
		t.Errorf("%d connections failed", failed)
	}
	if err := os.Remove(n.dir + "/dns.yaml"); err != nil {
		t.Fatal(err)
	}
	n.eventually("the address of a Service that is gone has left", func() bool { return !strings.Contains(held(), "10.96.0.10/") })
}
