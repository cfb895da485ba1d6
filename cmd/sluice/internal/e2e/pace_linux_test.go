package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/bench/testbed"
	"github.com/sluice-lb/sluice/cmd/sluice/internal/e2e/lab"
)

// TestMinSyncPeriod: changes that follow each other wait for rules to be written, in
// proportion to --iptables-min-sync-period or --ipvs-min-sync-period, and are in force then.
func TestMinSyncPeriod(t *testing.T) {
	for _, mode := range []string{"userspace", "iptables", "ipvs"} {
		t.Run(mode, func(t *testing.T) {
			lab.NeedMode(t, mode)
			l := lab.New(t, testbed.Config{Pods: 1})
			l.Mode = mode
			l.ServeWeb()
			of, period := "iptables", "10s" // a run of iptables-restore may take all of the 200 ms
			if mode == "userspace" {
				period = "100s" // to write sets takes a millisecond
			}
			if mode == "ipvs" {
				of = mode
			}
			l.Start("--"+of+"-min-sync-period", period, "--"+of+"-sync-period", "200s")
			seen := l.Metric("kubeproxy_sync_proxy_rules_service_changes_total")
			const changes = 4
			for n := range changes {
				name := fmt.Sprint("s", n)
				l.Write(name+".yaml", testbed.ServiceManifest(name, fmt.Sprintf("10.96.0.9%d:80", n), "TCP", ""),
					testbed.SliceManifest(name, 1, 8080, "TCP", testbed.Addrs(l.Pods...)...))
				seen++
				l.Eventually(name+" is read", func() bool {
					return l.Metric("kubeproxy_sync_proxy_rules_service_changes_total") == seen
				})
			}
			l.Eventually("changes wait", func() bool { return l.Metric("sluice_rule_syncs_deferred_total") > 0 })
			for n := range changes {
				l.Eventually("all are in force", func() bool {
					_, err := lab.WhoWithin(300*time.Millisecond, l.Client, fmt.Sprintf("10.96.0.9%d:80", n))
					return err == nil
				})
			}
		})
	}
}
