package handover

import (
	"fmt"
	"hash/crc32"
	"math"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// Upgrades lose no association, no message and no client that is about to come, and the
// engine is the same afterwards.
func TestSCTPUpgrade(t *testing.T) {
	testbed.Race(t)
	testbed.Timed(t)
	testbed.VM(t)
	t.Parallel()
	ends := testbed.NewSCTPEnds(t)
	upgrades := 4
	if testing.Short() { // as in a machine that is interpreted
		upgrades = 2
	}
	n := newLine(t, testbed.Config{Pods: 2, Clients: 3})
	for _, pod := range n.Pods {
		ends.Echo(t, pod)
	}
	n.Write("sig.yaml", lab.SCTPService,
		testbed.SliceManifest("sig", 1, ends.EchoPort, "SCTP", testbed.Addrs(n.Pods...)...))
	n.start()
	addr := netip.MustParseAddrPort("10.96.0.38:3868")
	stop := make(chan struct{})
	var all sync.WaitGroup
	var asked, opened atomic.Int64
	talk := func(who string, c testbed.SCTPClient, most int) bool {
		for i := 0; i < most; i++ {
			select {
			case <-stop:
				return true
			default:
			}
			line := fmt.Sprintf("%s %d %s", who, i, strings.Repeat("x", i%1000))
			line = fmt.Sprintf("%s %08x", line, crc32.ChecksumIEEE([]byte(line)))
			if err := c.Ask(line); err != nil {
				t.Errorf("%s: %v", who, err)
				return false
			}
			asked.Add(1)
		}
		return true
	}
	for _, from := range n.Clients[:2] { // they hold theirs throughout
		for i := range ends.PerHost {
			c, err := ends.Open(from, addr)
			testbed.Check(t, err)
			opened.Add(1)
			all.Go(func() {
				defer c.Close()
				talk(fmt.Sprintf("%s/%d", from.Name, i), c, math.MaxInt)
			})
		}
	}
	all.Go(func() { // one after the other
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			c, err := ends.Open(n.Clients[2], addr)
			if err != nil {
				t.Error(err)
				return
			}
			opened.Add(1)
			ok := talk(fmt.Sprintf("new %d", i), c, 3)
			if c.Close(); !ok {
				return
			}
		}
	})
	enough := func(what string) {
		from, first := opened.Load(), asked.Load()
		n.Eventually(what, func() bool {
			return t.Failed() || opened.Load() > from+2 && asked.Load() > first+int64(20*ends.PerHost)
		})
	}
	enough("associations are in use")
	for range upgrades {
		n.mustUpgrade()
		enough("associations go on after an upgrade")
	}
	close(stop)
	all.Wait()
	t.Logf("%d associations, %d messages each way through %d upgrades", opened.Load(), asked.Load(), upgrades)
	n.Eventually("all have ended", func() bool { return n.Metric(`sluice_active_connections{protocol="SCTP"}`) == 0 })
	for _, reason := range []string{"endpoint", "expired", "limit"} {
		if got := n.Metric(fmt.Sprintf(`sluice_ended_connections_total{protocol="SCTP",reason=%q}`, reason)); got != 0 {
			t.Errorf("%v associations have ended by reason %s", got, reason)
		}
	}
	// What went before the last upgrade is counted still.
	if got := n.Metric(`sluice_connections_total{protocol="SCTP",result="established"}`); got != float64(opened.Load()) {
		t.Errorf("%v associations are counted, want %d", got, opened.Load())
	}
	n.Metric(fmt.Sprintf(`sluice_setting_info{reason="detected",setting="sctp_engine",value=%q}`, ends.Engine))
	if got := strings.Count(n.logged(), fmt.Sprintf(`"engine": %q`, ends.Engine)); got != upgrades+1 {
		t.Errorf("%d processes tell of the engine, want %d", got, upgrades+1)
	}
}
