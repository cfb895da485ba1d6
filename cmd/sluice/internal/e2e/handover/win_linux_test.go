package handover

import (
	"os"
	"strings"
	"testing"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// TestUpgradeHoldsAddresses: in mode winuserspace the node holds the service addresses
// throughout, and their sockets cross; the last process takes back what its predecessors
// have added.
func TestUpgradeHoldsAddresses(t *testing.T) {
	t.Parallel()
	n := newLine(t, testbed.Config{})
	n.ServeWeb()
	n.ServeDNS()
	n.Mode = "winuserspace"
	n.start("--udp-timeout", "10s")
	held := func() string { return n.Output("ip", "-o", "addr", "show", "to", "10.96.0.0/16") }
	before := held()
	if strings.Count(before, "10.96.0.") != 2 {
		t.Fatalf("the node holds %q", before)
	}
	g := emptyLoad(n.Lab)
	t.Cleanup(g.end)
	g.connect(n.Client, lab.WebAddr, 100)
	g.connect(n.Node, lab.WebAddr, 100)
	u := testbed.NewUDPClient(t, n.Client, lab.DNSAddr)
	pod, err := u.Insist()
	testbed.Check(t, err)
	for range 3 {
		n.mustUpgrade()
		if got, err := u.Ask([]byte("?"), testbed.Patience); err != nil || got != pod {
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
	testbed.Check(t, os.Remove(n.Dir+"/dns.yaml"))
	n.Eventually("the address of a Service that is gone has left", func() bool { return !strings.Contains(held(), "10.96.0.10/") })
}
